# services.memlane.networks.NAME.settings are the keys of a network's file. A network with TAP or AF_PACKET ports, or uplinks, sets devices = true.
{ config, lib, pkgs, ... }:
let
  cfg = config.services.memlane;
  toml = pkgs.formats.toml { };
  file = name: network: toml.generate "${name}.toml" network.settings;
  calls = [
    "@system-service"
    "~@privileged @resources @mount @swap @reboot @raw-io @obsolete"
    "@chown sched_setaffinity seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"
  ];
  # The directives of the package's units memlane@.service and memlane-net@.service; a test compares them.
  confined = {
    NoNewPrivileges = true;
    ProtectSystem = "strict";
    ProtectHome = true;
    PrivateTmp = true;
    PrivateMounts = true;
    ProtectProc = "invisible";
    ProtectClock = true;
    ProtectHostname = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    ProtectControlGroups = true;
    RestrictNamespaces = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    LockPersonality = true;
    MemoryDenyWriteExecute = true;
    RemoveIPC = true;
    UMask = "0077";
    SystemCallArchitectures = "native";
    SystemCallFilter = calls;
    SystemCallErrorNumber = "EPERM";
  };
  devices = {
    CapabilityBoundingSet = "CAP_NET_ADMIN CAP_NET_RAW";
    AmbientCapabilities = "CAP_NET_ADMIN CAP_NET_RAW";
    SystemCallFilter = calls ++ [ "capset" ];
    DevicePolicy = "closed";
    DeviceAllow = "/dev/net/tun rw";
    RestrictAddressFamilies = "AF_UNIX AF_NETLINK AF_PACKET AF_INET AF_INET6";
  };
  noDevices = {
    CapabilityBoundingSet = "";
    PrivateDevices = true;
    PrivateNetwork = true;
    PrivateUsers = true;
    ProcSubset = "pid";
    RestrictAddressFamilies = "AF_UNIX";
    IPAddressDeny = "any";
  };
  service = name: network: {
    name = "memlane-${name}";
    value = {
      description = "memlane network ${name}";
      wantedBy = [ "multi-user.target" ];
      after = [ "network.target" ];
      before = [ "virtqemud.service" "libvirtd.service" "libvirt-guests.service" "microvms.target" ];
      environment.XDG_RUNTIME_DIR = "/run";
      environment.FDSTORE = "4096";
      # A changed file is read by the process that runs; guests notice nothing.
      reloadTriggers = [ (file name network) ];
      # Nor is a new version a reason to disconnect guests: nixos-rebuild names the unit that it does not restart.
      restartIfChanged = false;
      unitConfig = { StartLimitIntervalSec = 60; StartLimitBurst = 20; };
      serviceConfig = confined // (if network.devices then devices else noDevices) // {
        Type = "notify-reload";
        NotifyAccess = "main";
        WatchdogSec = 10;
        ExecStart = "${lib.getExe cfg.package} up /etc/memlane/${name}.toml --state /var/lib/memlane/${name}.state";
        Restart = "on-failure";
        RestartSec = "100ms";
        RestartPreventExitStatus = 2;
        FileDescriptorStoreMax = 4096;
        User = "memlane";
        Group = "memlane";
        RuntimeDirectory = "memlane";
        RuntimeDirectoryMode = "0755";
        RuntimeDirectoryPreserve = true;
        StateDirectory = "memlane";
        LimitNOFILE = 65536;
        OOMScoreAdjust = -900;
      };
    };
  };
  etc = name: network: {
    name = "memlane/${name}.toml";
    value.source = file name network;
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
            description = "Whether the network has TAP or AF_PACKET ports, or uplinks.";
          };
        };
      });
    };
  };

  config = lib.mkIf (cfg.networks != { }) {
    environment.systemPackages = [ cfg.package ];
    environment.etc = lib.mapAttrs' etc cfg.networks;
    users.users.memlane = { isSystemUser = true; group = "memlane"; };
    users.groups.memlane = { };
    systemd.services = lib.mapAttrs' service cfg.networks;
  };
}
