//! `scripts/host` against machines made of files: what it says, what it refuses, what it would do.
//! That binding works is shown where there is a kernel to bind with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step is a failed test

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A machine: `sys`, `proc` and `dev` folders that vanish with it.
struct Machine(PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

impl Machine {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("pollux-host-{}-{next}", std::process::id()));
        let machine = Self(root);
        machine.write("proc/net/route", "Iface Destination Gateway\n");
        machine.locked("unlimited", 0);
        machine.write("dev/vfio/vfio", "");
        machine.write("sys/class/iommu/dmar0/name", "");
        machine.folder("sys/bus/pci/drivers/vfio-pci");
        machine.folder("sys/class/net");
        let pages = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        machine.write(&format!("{pages}/nr_hugepages"), "512\n");
        machine.write(&format!("{pages}/free_hugepages"), "500\n");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn folder(&self, name: &str) {
        std::fs::create_dir_all(self.path(name)).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What the caller may lock: the limit in bytes, and the effective capabilities.
    fn locked(&self, limit: &str, capabilities: u64) {
        let row = format!("Max locked memory         {limit:<20} {limit:<20} bytes\n");
        self.write("proc/self/limits", &row);
        let row = format!("Name:\tbash\nCapEff:\t{capabilities:016x}\n");
        self.write("proc/self/status", &row);
    }

    /// An adapter's function in a group, with a driver and, under the kernel's, an interface.
    fn adapter(&self, address: &str, group: u32, driver: &str, net: &str) {
        let folder = format!("sys/bus/pci/devices/{address}");
        for (file, text) in [
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
            ("class", "0x020000"),
            ("numa_node", "0"),
        ] {
            self.write(&format!("{folder}/{file}"), &format!("{text}\n"));
        }
        let members = format!("sys/kernel/iommu_groups/{group}/devices");
        self.folder(&members);
        let own = self.path(&folder);
        symlink(&own, self.path(&members).join(address)).unwrap();
        symlink(
            self.path(&format!("sys/kernel/iommu_groups/{group}")),
            own.join("iommu_group"),
        )
        .unwrap();
        if !driver.is_empty() {
            let place = format!("sys/bus/pci/drivers/{driver}");
            self.folder(&place);
            symlink(self.path(&place), own.join("driver")).unwrap();
        }
        if !net.is_empty() {
            self.write(&format!("{folder}/net/{net}/operstate"), "up\n");
            self.write(&format!("{folder}/net/{net}/speed"), "100000\n");
            self.write(
                &format!("{folder}/infiniband/mlx5_0/fw_ver"),
                "16.35.4030\n",
            );
            let layer = format!("{folder}/infiniband/mlx5_0/ports/1/link_layer");
            self.write(&layer, "Ethernet\n");
        }
    }

    /// A program that the script finds before the machine's own.
    fn program(&self, name: &str, text: &str) {
        let file = format!("bin/{name}");
        self.write(&file, &format!("#!/bin/sh\n{text}\n"));
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(&file), runs).unwrap();
    }

    fn host(&self, words: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/host");
        let path = std::env::var("PATH").unwrap();
        Command::new(script)
            .args(words)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("POLLUX_SYSFS", self.path("sys"))
            .env("POLLUX_PROCFS", self.path("proc"))
            .env("POLLUX_DEVFS", self.path("dev"))
            .env_remove("SSH_CONNECTION")
            .output()
            .unwrap()
    }

    fn says(&self, words: &[&str], status: i32) -> String {
        let output = self.host(words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {text}");
        text
    }
}

#[test]
fn a_prepared_machine_is_ready() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "vfio-pci", "");
    machine.write("dev/vfio/26", "");
    let text = machine.says(&["check"], 0);
    for words in [
        "IOMMU: on",
        "500 of 512 free",
        "ConnectX-5",
        "driver: vfio-pci",
        "group: 26, 1 member(s): 0000:3b:00.0",
        "NUMA node: 0",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.ends_with("ready\n"), "{text}");
}

#[test]
fn what_is_missing_is_said_with_the_remedy() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    machine.adapter("0000:3b:00.1", 26, "mlx5_core", "");
    std::fs::remove_dir_all(machine.path("sys/class/iommu")).unwrap();
    std::fs::remove_file(machine.path("dev/vfio/vfio")).unwrap();
    std::fs::remove_dir_all(machine.path("sys/devices")).unwrap();
    let text = machine.says(&["check", "3b:00.0"], 1);
    for words in [
        "TO DO IOMMU: off",
        "intel_iommu=on",
        "modprobe vfio-pci",
        "scripts/host hugepages",
        "scripts/host bind 0000:3b:00.0",
        "also holds 0000:3b:00.1 (mlx5_core)",
        "firmware: 16.35.4030",
        "port type: Ethernet",
        "link: up, 100000 Mb/s (eth0)",
        "5 thing(s) to do",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn the_limit_of_locked_memory_counts_unless_the_caller_stands_above_it() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "vfio-pci", "");
    // CAP_IPC_LOCK is bit 14; the one below it and the one above help nobody.
    for (limit, capabilities, status, words) in [
        ("8388608", 0, 1, "TO DO locked memory: 8192 KiB"),
        ("8388608", 0xa000, 1, "TO DO locked memory: 8192 KiB"),
        ("8388608", 0x4000, 0, "OK    locked memory: unlimited"),
        ("2147483648", 0, 0, "OK    locked memory: 2097152 KiB"),
        ("unlimited", 0, 0, "OK    locked memory: unlimited"),
    ] {
        machine.locked(limit, capabilities);
        let text = machine.says(&["check"], status);
        assert!(text.contains(words), "{limit} {capabilities:x}: {text}");
    }
}

#[test]
fn an_infiniband_port_and_a_dead_link_are_named() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    let folder = "sys/bus/pci/devices/0000:3b:00.0";
    machine.write(
        &format!("{folder}/infiniband/mlx5_0/ports/1/link_layer"),
        "InfiniBand\n",
    );
    machine.write(&format!("{folder}/net/eth0/operstate"), "down\n");
    machine.write(
        "sys/kernel/security/lockdown",
        "none [integrity] confidentiality\n",
    );
    let text = machine.says(&["check"], 1);
    assert!(text.contains("LINK_TYPE_P1=2"), "{text}");
    assert!(text.contains("TO DO 0000:3b:00.0 link: down"), "{text}");
    assert!(text.contains("lockdown (integrity"), "{text}");
}

#[test]
fn the_way_in_is_not_taken_away() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    // A VLAN on a bond on the adapter carries the default route.
    machine.folder("sys/class/net/bond0.7/lower_bond0");
    machine.folder("sys/class/net/bond0/lower_eth0");
    machine.write(
        "proc/net/route",
        "Iface Destination Gateway\nbond0.7 00000000 0102A8C0 0003\neth9 0000A8C0 00000000 0001\n",
    );
    let text = machine.says(&["bind", "3b:00.0"], 1);
    assert!(text.contains("eth0") && text.contains("--force"), "{text}");
    let forced = machine.says(&["bind", "3b:00.0", "--force", "--dry-run"], 0);
    assert!(forced.contains("echo vfio-pci >"), "{forced}");
    // The same over IPv6, on the interface itself.
    machine.write("proc/net/route", "Iface Destination Gateway\n");
    let zeros = "00000000000000000000000000000000";
    machine.write(
        "proc/net/ipv6_route",
        &format!("{zeros} 00 {zeros} 00 fe80 00000400 1 0 00000003 eth0\n"),
    );
    machine.says(&["bind", "3b:00.0"], 1);
    machine.write(
        "proc/net/ipv6_route",
        &format!("{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 00200200 lo\n"),
    );
    machine.says(&["bind", "3b:00.0", "--dry-run"], 0);
}

#[test]
fn a_dry_run_says_every_step_and_does_none() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    let text = machine.says(&["--dry-run", "bind", "3b:00.0", "--owner", "alice"], 0);
    let order: Vec<usize> = [
        "driver_override",
        "driver/unbind",
        "drivers_probe",
        "chown alice",
        "undo: scripts/host unbind 0000:3b:00.0",
    ]
    .iter()
    .map(|words| {
        text.find(words)
            .unwrap_or_else(|| panic!("{words}: {text}"))
    })
    .collect();
    assert!(order.is_sorted(), "{text}");
    let own = machine.path("sys/bus/pci/devices/0000:3b:00.0");
    assert!(!own.join("driver_override").exists());
    let back = machine.says(&["unbind", "3b:00.0", "--dry-run"], 0);
    assert!(back.contains("has mlx5_core already"), "{back}");
}

#[test]
fn virtual_functions_keep_their_parent() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    machine.write("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "4\n");
    let text = machine.says(&["bind", "3b:00.0"], 1);
    assert!(text.contains("4 virtual functions"), "{text}");
}

#[test]
fn a_binding_that_does_not_happen_is_taken_back() {
    // Nobody acts on the files, as when the kernel refuses.
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    let text = machine.says(&["bind", "3b:00.0"], 1);
    assert!(
        text.contains("did not go to vfio-pci") && text.contains("mlx5_core"),
        "{text}"
    );
    let over = machine.path("sys/bus/pci/devices/0000:3b:00.0/driver_override");
    assert_eq!(
        std::fs::read_to_string(over).unwrap(),
        "\n",
        "the override is empty again"
    );
}

#[test]
fn hugepages_are_set_read_back_and_undone() {
    let machine = Machine::new();
    let file = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    let text = machine.says(&["hugepages", "100", "--node", "0"], 0);
    assert!(text.contains("512 before, 100 now"), "{text}");
    assert!(
        text.contains("undo: scripts/host hugepages 512 --size 2M --node 0"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(machine.path(file)).unwrap(),
        "100\n"
    );
    let text = machine.says(&["hugepages", "7", "--node", "0", "--dry-run"], 0);
    assert!(text.contains("would write"), "{text}");
    assert!(
        text.contains("undo: scripts/host hugepages 100 --size 2M --node 0"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(machine.path(file)).unwrap(),
        "100\n"
    );
    machine.write("sys/devices/system/node/online", "0\n");
    let text = machine.says(&["hugepages", "7", "--node", "3"], 1);
    assert!(
        text.contains("no NUMA node 3") && text.contains("here are: 0"),
        "{text}"
    );
}

#[test]
fn models_that_cannot_be_driven_or_are_not_known_are_said() {
    for (id, words, status) in [
        (
            "0x1003",
            "TO DO 0000:3b:00.1 model: Pollux cannot drive it",
            1,
        ),
        (
            "0x1011",
            "TO DO 0000:3b:00.1 model: Pollux cannot drive it",
            1,
        ),
        ("0x020d", "mstflint -d 0000:3b:00.1 -i IMAGE burn", 1),
        ("0x1027", "NOTE  0000:3b:00.1 model: not known here", 0),
        ("0x101d", "0000:3b:00.1 ConnectX-6 Dx", 0),
    ] {
        let machine = Machine::new();
        machine.adapter("0000:3b:00.1", 26, "vfio-pci", "");
        machine.write("dev/vfio/26", "");
        machine.write(
            "sys/bus/pci/devices/0000:3b:00.1/device",
            &format!("{id}\n"),
        );
        let text = machine.says(&["check"], status);
        assert!(text.contains(words), "{id}: {text}");
    }
}

#[test]
fn the_second_port_has_a_setting_of_its_own() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.1", 26, "mlx5_core", "ib1");
    let layer = "sys/bus/pci/devices/0000:3b:00.1/infiniband/mlx5_0/ports/1/link_layer";
    machine.write(layer, "InfiniBand\n");
    let text = machine.says(&["check"], 1);
    assert!(text.contains("LINK_TYPE_P2=2"), "{text}");
}

/// A default route over anything that stands on the adapter keeps it.
#[test]
fn what_stands_on_an_adapter_keeps_it() {
    for chain in [
        &["eth0"][..],
        &["bond0", "eth0"],
        &["br0", "eth0"],
        &["team0", "eth0"],
        &["eth0.100", "eth0"],
        &["macvlan0", "eth0"],
        // A VLAN on a bridge on a bond.
        &["br0.7", "br0", "bond0", "eth0"],
    ] {
        let machine = Machine::new();
        machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
        machine.adapter("0000:3b:00.1", 27, "mlx5_core", "eth1");
        for pair in chain.windows(2) {
            machine.folder(&format!("sys/class/net/{}/lower_{}", pair[0], pair[1]));
        }
        let route = format!(
            "Iface Destination Gateway\n{} 00000000 0102A8C0 0003\n",
            chain[0]
        );
        machine.write("proc/net/route", &route);
        let text = machine.says(&["bind", "3b:00.0", "--dry-run"], 1);
        assert!(text.contains("is eth0, which carries"), "{chain:?}: {text}");
        let text = machine.says(&["check", "3b:00.0"], 1);
        assert!(text.contains("use another adapter"), "{chain:?}: {text}");
        // Its neighbour carries nothing.
        machine.says(&["bind", "3b:00.1", "--dry-run"], 0);
        machine.says(&["bind", "3b:00.0", "--dry-run", "--force"], 0);
    }
}

#[test]
fn an_ssh_connection_keeps_its_adapter_behind_sudo_too() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    machine.folder("sys/class/net/bond0/lower_eth0");
    machine.program(
        "ip",
        "echo '7: bond0    inet 192.0.2.7/24 brd 192.0.2.255 scope global bond0'",
    );
    machine.says(&["bind", "3b:00.0", "--dry-run"], 0);
    // sudo keeps the variable away; the shell in front of it still has it.
    let parent = format!("proc/{}", std::process::id());
    machine.write(&format!("{parent}/environ"), "HOME=/root\0");
    machine.write(&format!("{parent}/status"), "Name:\tsudo\nPPid:\t77\n");
    machine.write(
        "proc/77/environ",
        "HOME=/home/alice\0SSH_CONNECTION=198.51.100.1 50000 192.0.2.7 22\0TERM=x\0",
    );
    let text = machine.says(&["bind", "3b:00.0", "--dry-run"], 1);
    assert!(
        text.contains("is eth0, which carries") && text.contains("--force"),
        "{text}"
    );
    // A connection to another address is nothing to this adapter.
    machine.write(
        "proc/77/environ",
        "SSH_CONNECTION=198.51.100.1 50000 192.0.2.8 22\0",
    );
    machine.says(&["bind", "3b:00.0", "--dry-run"], 0);
}

#[test]
fn all_of_several_are_taken_or_none() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    machine.adapter("0000:3b:00.1", 27, "mlx5_core", "eth1");
    machine.write(
        "proc/net/route",
        "Iface Destination\neth1 00000000 0102A8C0 0003\n",
    );
    let text = machine.says(&["bind", "3b:00.0", "3b:00.1"], 1);
    assert!(text.contains("nothing was changed"), "{text}");
    let own = machine.path("sys/bus/pci/devices/0000:3b:00.0/driver_override");
    assert!(!own.exists());
    let text = machine.says(&["bind", "3b:00.0", "3b:00.9"], 1);
    assert!(text.contains("no PCI function 0000:3b:00.9"), "{text}");
    assert!(!own.exists());
    let text = machine.says(&["bind", "3b:00.0", "--owner", "nobody-of-that-name"], 2);
    assert!(text.contains("there is no such user"), "{text}");
    assert!(!own.exists());
}

#[test]
fn what_is_not_an_adapter_is_left_alone() {
    let machine = Machine::new();
    machine.adapter("0000:00:1f.0", 3, "ahci", "");
    machine.write("sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
    for words in [
        &["check", "00:1f.0"],
        &["bind", "00:1f.0"],
        &["unbind", "00:1f.0"],
    ] {
        let text = machine.says(words, 1);
        assert!(
            text.contains("no Mellanox or NVIDIA device (vendor 0x8086)"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn the_rest_of_the_group_is_named_when_one_is_bound() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    machine.adapter("0000:3b:00.1", 26, "mlx5_core", "eth1");
    let text = machine.says(&["bind", "3b:00.0", "--dry-run"], 0);
    assert!(
        text.contains("group 26 also holds 0000:3b:00.1 (mlx5_core)"),
        "{text}"
    );
}

#[test]
fn hugepages_are_wanted_where_the_adapter_is() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "vfio-pci", "");
    machine.write("dev/vfio/26", "");
    machine.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    let other = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";
    machine.write(&format!("{other}/nr_hugepages"), "0\n");
    machine.write(&format!("{other}/free_hugepages"), "0\n");
    let text = machine.says(&["check"], 1);
    assert!(
        text.contains("hugepages: none on its NUMA node 1; scripts/host hugepages 512 --node 1"),
        "{text}"
    );
    machine.write(&format!("{other}/nr_hugepages"), "64\n");
    let text = machine.says(&["check"], 1);
    assert!(
        text.contains("node 1, 2M: 0 of 64 free; end the program"),
        "{text}"
    );
    machine.write(&format!("{other}/free_hugepages"), "64\n");
    machine.says(&["check"], 0);
}

#[test]
fn unbinding_says_who_has_it_open_and_what_it_leads_to() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "vfio-pci", "");
    machine.write("proc/4711/comm", "pollux-testpmd\n");
    machine.folder("proc/4711/fd");
    symlink(machine.path("dev/vfio/26"), machine.path("proc/4711/fd/9")).unwrap();
    let text = machine.says(&["unbind", "3b:00.0", "--dry-run"], 0);
    assert!(
        text.contains("open in pollux-testpmd (process 4711)"),
        "{text}"
    );
    assert!(
        text.contains("undo: scripts/host bind 0000:3b:00.0"),
        "{text}"
    );
    // Nobody acts on the files, so that it stays where it is.
    let text = machine.says(&["unbind", "3b:00.0"], 1);
    assert!(text.contains("still with vfio-pci"), "{text}");
    // And one that no driver takes.
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "", "");
    let text = machine.says(&["unbind", "3b:00.0"], 1);
    assert!(
        text.contains("has no driver now; modprobe mlx5_core"),
        "{text}"
    );
}

#[test]
fn the_undo_of_a_forced_bind_brings_virtual_functions_back() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    machine.write("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "4\n");
    let text = machine.says(&["bind", "3b:00.0", "--force", "--dry-run"], 0);
    assert!(
        text.contains("undo: scripts/host unbind 0000:3b:00.0; then"),
        "{text}"
    );
    assert!(text.contains("echo 4 > "), "{text}");
}

#[test]
fn a_kernel_that_refuses_a_write_is_quoted() {
    let machine = Machine::new();
    machine.adapter("0000:3b:00.0", 26, "mlx5_core", "eth0");
    // A folder takes no text, as a file of sysfs may not.
    machine.folder("sys/bus/pci/devices/0000:3b:00.0/driver_override");
    let text = machine.says(&["bind", "3b:00.0"], 1);
    assert!(text.contains("driver_override: Is a directory"), "{text}");
    assert!(text.contains("was given back"), "{text}");
}

#[test]
fn misuse_is_one_line_and_status_2() {
    let machine = Machine::new();
    for (words, part) in [
        (&["bind"][..], "needs the address"),
        (&["bind", "eth0"], "eth0 is no PCI address"),
        (&["hugepages"], "given nothing, a number"),
        (&["hugepages", "many"], "a number"),
        (&["hugepages", "-3"], "given -3, a number"),
        (&["hugepages", "99999999999999999999"], "a number"),
        (&["hugepages", "1", "2"], "takes one number"),
        (&["hugepages", "1", "--size", "4M"], "2M, 1G"),
        (&["hugepages", "1", "--size"], "--size needs"),
        (&["hugepages", "1", "--node", "one"], "--node one"),
        (&["check", "--fast"], "--fast"),
        (&["check", "eth0"], "eth0 is no PCI address"),
        (&["take"], "check, hugepages, bind and unbind"),
        (&["--dry-run"], "a command is missing"),
        // Options that would do nothing.
        (&["check", "--dry-run"], "check takes no --dry-run"),
        (&["unbind", "3b:00.0", "--force"], "unbind takes no --force"),
        (
            &["hugepages", "1", "--owner", "root"],
            "hugepages takes no --owner",
        ),
        (&["bind", "3b:00.0", "--node", "1"], "bind takes no --node"),
    ] {
        let text = machine.says(words, 2);
        assert!(text.contains(part), "{words:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let text = machine.says(&["bind", "ff:00.0"], 1);
    assert!(text.contains("no PCI function 0000:ff:00.0"), "{text}");
}
