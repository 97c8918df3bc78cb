{
  description = "memlane, a virtual switch for the guests of one host";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  outputs = { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};
    in
    {
      packages.${system}.default = pkgs.rustPlatform.buildRustPackage {
        pname = "memlane";
        version = "0.1.0";
        src = ../..;
        cargoLock.lockFile = ../../Cargo.lock;
        cargoBuildFlags = [ "--package" "memlane" ];
        doCheck = false; # the tests need root and the lab
        meta.mainProgram = "memlane";
      };
      nixosModules.default = { ... }: {
        imports = [ ./module.nix ];
        services.memlane.package = self.packages.${system}.default;
      };
    };
}
