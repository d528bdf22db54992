//! What is to be done: command line over configuration file over defaults, all checked.
//!
//! A refusal is one line: what was given, what is allowed, what to do. What only the
//! device knows (its limits) is checked when a session opens it.

use std::fmt;
use std::path::{Path, PathBuf};

use pollux::{Config, Pages};
use pollux_mempool::burst::MAX_BURST;
use pollux_mempool::lcore::allowed_cpus;
use serde::Deserialize;

use crate::args::Arguments;
use crate::args::options::{EthPeer, Event, ForwardMode, Options, Topology};
use crate::forward::txonly::SHORTEST;

/// What a frame has beside its MTU: the Ethernet header, and four bytes that are the check
/// sequence on the wire and a VLAN tag in a buffer.
pub const FRAME_OVERHEAD: usize = 18;
/// Bytes before the packet in each buffer.
pub const HEADROOM: usize = 128;

/// A configuration file: `[pollux]` is the driver's, `[testpmd]` ours.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// Devices, cores, memory, ports.
    pub pollux: Config,
    /// The options that can stand after `--`, by the same names.
    pub testpmd: Options,
}

/// A setting that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSetting(pub String);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSetting {}

/// When a run without a shell ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// When the user presses enter or closes the input.
    Enter,
    /// When it is told to by a signal.
    Signal,
    /// When every capture was sent and forwarded.
    Drained,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the driver is opened with.
    pub config: Config,
    /// The CPU that the shell's thread is meant for; unused by forwarding.
    pub main_cpu: usize,
    /// CPUs for forwarding, in order; never empty.
    pub cpus: Vec<usize>,
    /// Forwarding cores.
    pub nb_cores: usize,
    /// The mode.
    pub mode: ForwardMode,
    /// Which port's packets leave by which.
    pub topology: Topology,
    /// Packets per burst.
    pub burst: usize,
    /// Length of packets made here.
    pub tx_length: usize,
    /// Addresses of neighbours.
    pub peers: Vec<EthPeer>,
    /// Open a shell.
    pub interactive: bool,
    /// Start forwarding before the shell opens.
    pub auto_start: bool,
    /// Send a burst first.
    pub tx_first: bool,
    /// Seconds between statistics.
    pub stats_period: Option<u64>,
    /// Seconds to run.
    pub duration: Option<u64>,
    /// What else ends a run without a shell.
    pub end: End,
    /// Show a progress bar.
    pub progress: bool,
    /// Record gaps between polls.
    pub poll_gaps: bool,
    /// Record cycles per packet.
    pub record_core_cycles: bool,
    /// Do not start the ports.
    pub disable_device_start: bool,
    /// Do not wait for links.
    pub disable_link_check: bool,
    /// Report changes of the link.
    pub link_events: bool,
    /// Where the report goes.
    pub json: Option<PathBuf>,
    /// Command files, and whether to show the commands.
    pub command_files: Vec<(PathBuf, bool)>,
    /// Single commands.
    pub commands: Vec<String>,
    /// Most buffer memory per node in MiB; 0 is no limit.
    pub socket_mem: Vec<u64>,
    /// What to log.
    pub log: Option<String>,
}

impl Settings {
    /// Puts arguments, file and defaults together.
    ///
    /// # Errors
    /// The file cannot be read or understood, or a value is out of its range.
    pub fn new(arguments: Arguments) -> Result<Self, BadSetting> {
        let file = match &arguments.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let (eal, o) = (arguments.eal, arguments.testpmd.or(file.testpmd));
        let mut config = file.pollux;
        if !eal.allow.is_empty() {
            config.devices = eal.allow;
        }
        if config.devices.is_empty() && eal.no_pci {
            config.devices.push("emu:".into());
        }
        if eal.no_huge {
            config.memory.pages = Pages::Ordinary;
        }
        let listed = eal
            .lcores
            .map(|l| l.0)
            .unwrap_or_else(|| config.lcores.clone());
        let (main_cpu, cpus) = cores(&listed, eal.main_lcore)?;
        config.lcores.clone_from(&cpus);
        let nb_cores = number("nb-cores", o.nb_cores, 1, 1, cpus.len() as u64, || {
            "give a smaller number, or more CPUs with -l (the first one runs the shell)".into()
        })?;
        memory(&o, &mut config)?;
        ports(&o, &mut config)?;
        config.check().map_err(|e| BadSetting(e.to_string()))?;
        alone(&o)?;
        let burst = number("burst", o.burst, 32, 1, MAX_BURST as u64, || {
            "32 is usual".into()
        })?;
        let longest = config.memory.data_room as u64;
        let tx_length = number("txpkts", o.txpkts, 64, SHORTEST as u64, longest, || {
            "give a length that holds Ethernet, IPv4 and UDP headers and fits a buffer".into()
        })?;
        let end = if o.until_drained {
            End::Drained
        } else if o.stats_period.is_some() || o.duration.is_some() {
            End::Signal
        } else {
            End::Enter
        };
        let most = u64::from(u32::MAX);
        let seconds = |name, given: Option<u64>| -> Result<Option<u64>, BadSetting> {
            given
                .map(|_| number(name, given, 1, 1, most, || "give whole seconds".into()))
                .transpose()
                .map(|n| n.map(|n| n as u64))
        };
        Ok(Self {
            main_cpu,
            cpus,
            nb_cores,
            mode: o.forward_mode.unwrap_or_default(),
            topology: o.port_topology.unwrap_or_default(),
            burst,
            tx_length,
            peers: o.eth_peer,
            interactive: o.interactive,
            auto_start: o.auto_start,
            tx_first: o.tx_first,
            stats_period: seconds("stats-period", o.stats_period)?,
            duration: seconds("duration", o.duration)?,
            end,
            progress: o.progress,
            poll_gaps: o.poll_gaps,
            record_core_cycles: o.record_core_cycles,
            disable_device_start: o.disable_device_start,
            disable_link_check: o.disable_link_check,
            link_events: !o
                .mask_event
                .iter()
                .any(|e| matches!(e, Event::LinkChange | Event::All)),
            json: o.json,
            command_files: o
                .cmdline_file
                .into_iter()
                .map(|f| (f, true))
                .chain(o.cmdline_file_noecho.into_iter().map(|f| (f, false)))
                .collect(),
            commands: o.cmd,
            socket_mem: eal.socket_mem,
            log: eal.log_level,
            config,
        })
    }
}

/// Reads a configuration file.
///
/// # Errors
/// It cannot be read, or holds something unknown; then with line and column.
pub fn read(path: &Path) -> Result<File, BadSetting> {
    pollux::config::read_toml(path).map_err(|e| BadSetting(e.to_string()))
}

fn number(
    name: &str,
    given: Option<u64>,
    default: u64,
    min: u64,
    max: u64,
    remedy: impl FnOnce() -> String,
) -> Result<usize, BadSetting> {
    let n = given.unwrap_or(default);
    if (min..=max).contains(&n) {
        // `max` is below 2^32 at every call.
        return Ok(usize::try_from(n).unwrap_or(usize::MAX));
    }
    let allowed = if min == max {
        format!("only {min} allowed")
    } else {
        format!("{min} to {max} allowed")
    };
    Err(BadSetting(format!("--{name}={n}: {allowed}; {}", remedy())))
}

/// Descriptors: a power of two that a device could have.
fn descriptors(name: &str, given: Option<u64>) -> Result<usize, BadSetting> {
    let n = number(name, given, 512, 1, 32_768, || "512 is usual".into())?;
    if n.is_power_of_two() {
        return Ok(n);
    }
    let above = n.next_power_of_two();
    Err(BadSetting(format!(
        "--{name}={n}: only powers of two allowed; give {} or {above}",
        above / 2
    )))
}

/// The shell's CPU and those that forward. One CPU alone does both.
fn cores(listed: &[usize], main: Option<usize>) -> Result<(usize, Vec<usize>), BadSetting> {
    let allowed = allowed_cpus();
    let cpus = if listed.is_empty() { allowed } else { listed };
    for cpu in cpus.iter().chain(&main) {
        if !allowed.contains(cpu) {
            return Err(BadSetting(format!(
                "CPU {cpu}: this process may run on {}; give some of these with -l, or widen the set (taskset, the container's cpuset)",
                list(allowed)
            )));
        }
    }
    let Some(first) = cpus.first() else {
        return Err(BadSetting(
            "the kernel does not say which CPUs may be used; give them with -l".into(),
        ));
    };
    let main_cpu = main.unwrap_or(*first);
    if !cpus.contains(&main_cpu) {
        return Err(BadSetting(format!(
            "--main-lcore={main_cpu}: not among the CPUs of -l ({}); give one of them",
            list(cpus)
        )));
    }
    if cpus.len() == 1 {
        return Ok((main_cpu, vec![main_cpu]));
    }
    Ok((
        main_cpu,
        cpus.iter().copied().filter(|c| *c != main_cpu).collect(),
    ))
}

fn list(cpus: &[usize]) -> String {
    cpus.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

fn memory(o: &Options, config: &mut Config) -> Result<(), BadSetting> {
    if let Some(size) = o.mbuf_size {
        let least = (HEADROOM + 64) as u64;
        let size = number("mbuf-size", Some(size), 0, least, 65_535, || {
            format!("{HEADROOM} bytes of it are headroom; 2176 is usual")
        })?;
        config.memory.headroom = HEADROOM;
        config.memory.data_room = size - HEADROOM;
    }
    if o.total_num_mbufs.is_some() {
        let n = number("total-num-mbufs", o.total_num_mbufs, 0, 64, 1 << 26, || {
            "leave it out for a number that fits queues and cores".into()
        })?;
        config.memory.mbufs = Some(n);
    }
    if o.mbcache.is_some() {
        config.memory.cache = number("mbcache", o.mbcache, 0, 0, 4096, || {
            "256 is usual, 0 switches the cache off".into()
        })?;
    }
    Ok(())
}

fn ports(o: &Options, config: &mut Config) -> Result<(), BadSetting> {
    let port = &mut config.port;
    let queues = || "one per forwarding core is usual".to_owned();
    if o.rxq.is_some() {
        port.rx_queues = number("rxq", o.rxq, 1, 1, 1024, queues)?;
    }
    if o.txq.is_some() {
        port.tx_queues = number("txq", o.txq, 1, 1, 1024, queues)?;
    }
    if o.rxd.is_some() {
        port.rx_descriptors = descriptors("rxd", o.rxd)?;
    }
    if o.txd.is_some() {
        port.tx_descriptors = descriptors("txd", o.txd)?;
    }
    if o.max_pkt_len.is_some() {
        let n = number("max-pkt-len", o.max_pkt_len, 0, 86, 65_535, || {
            "1518 is Ethernet's own, 9018 a jumbo frame".into()
        })?;
        port.mtu = Some(n - FRAME_OVERHEAD);
    }
    if let Some(mtu) = port.mtu {
        fits_buffers(mtu, config.memory.data_room)?;
    }
    Ok(())
}

/// A frame must fit one buffer: nothing is scattered over several.
///
/// # Errors
/// It does not; the sizes are named.
pub fn fits_buffers(mtu: usize, data_room: usize) -> Result<(), BadSetting> {
    let frame = mtu + FRAME_OVERHEAD;
    if frame <= data_room {
        return Ok(());
    }
    Err(BadSetting(format!(
        "MTU {mtu} means frames of {frame} bytes, but a buffer holds {data_room}; give --mbuf-size={} or more, or an MTU of at most {}",
        frame + HEADROOM,
        data_room.saturating_sub(FRAME_OVERHEAD)
    )))
}

/// Options that make sense only without a shell.
fn alone(o: &Options) -> Result<(), BadSetting> {
    if !o.interactive {
        return Ok(());
    }
    for (given, name) in [
        (o.tx_first, "--tx-first"),
        (o.until_drained, "--until-drained"),
        (o.progress, "--progress"),
        (o.duration.is_some(), "--duration"),
        (o.stats_period.is_some(), "--stats-period"),
    ] {
        if given {
            return Err(BadSetting(format!(
                "{name} works only without a shell; leave out -i or {name}"
            )));
        }
    }
    Ok(())
}
