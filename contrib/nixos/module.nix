# services.memlane.networks.NAME.settings are the keys of a network's file. A network with TAP ports or uplinks sets devices = true.
{ config, lib, pkgs, ... }:
let
  cfg = config.services.memlane;
  toml = pkgs.formats.toml { };
  # Directives beside those of the package's unit, whose program is elsewhere here.
  service = name: network: {
    name = "memlane-${name}";
    value = {
      description = "memlane network ${name}";
      wantedBy = [ "multi-user.target" ];
      before = [ "virtqemud.service" "libvirtd.service" "microvms.target" ];
      environment.XDG_RUNTIME_DIR = "/run";
      serviceConfig = {
        Type = "notify-reload";
        WatchdogSec = 10;
        ExecStart = "${lib.getExe cfg.package} up ${toml.generate "${name}.toml" network.settings} --state /var/lib/memlane/${name}.state";
        Restart = "on-failure";
        RestartSec = "100ms";
        RestartPreventExitStatus = 2;
        User = "memlane";
        Group = "memlane";
        RuntimeDirectory = "memlane";
        RuntimeDirectoryPreserve = true;
        StateDirectory = "memlane";
        LimitNOFILE = 65536;
        OOMScoreAdjust = -900;
        UMask = "0077";
        NoNewPrivileges = true;
        ProtectSystem = "strict";
        ProtectHome = true;
        PrivateTmp = true;
        RestrictNamespaces = true;
        MemoryDenyWriteExecute = true;
        SystemCallArchitectures = "native";
      } // (if network.devices then {
        AmbientCapabilities = [ "CAP_NET_ADMIN" ];
        CapabilityBoundingSet = [ "CAP_NET_ADMIN" ];
        DevicePolicy = "closed";
        DeviceAllow = [ "/dev/net/tun rw" ];
      } else {
        CapabilityBoundingSet = [ "" ];
        PrivateDevices = true;
        PrivateNetwork = true;
        PrivateUsers = true;
        RestrictAddressFamilies = [ "AF_UNIX" ];
      });
    };
  };
in
{
  options.services.memlane = {
    package = lib.mkOption {
      type = lib.types.package;
      description = "The package with the program memlane.";
    };
    networks = lib.mkOption {
      default = { };
      description = "Networks by their names.";
      type = lib.types.attrsOf (lib.types.submodule {
        options = {
          settings = lib.mkOption {
            type = toml.type;
            default = { };
            description = "Keys of the network's file.";
            example = { port = [{ name = "web"; vhost-user = "/run/memlane/web.sock"; }]; };
          };
          devices = lib.mkOption {
            type = lib.types.bool;
            default = false;
            description = "Whether the network has TAP ports or uplinks.";
          };
        };
      });
    };
  };

  config = lib.mkIf (cfg.networks != { }) {
    environment.systemPackages = [ cfg.package ];
    users.users.memlane = { isSystemUser = true; group = "memlane"; };
    users.groups.memlane = { };
    systemd.services = lib.mapAttrs' service cfg.networks;
  };
}
