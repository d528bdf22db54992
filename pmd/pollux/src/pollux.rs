//! [`Pollux`]: everything that one application opened, from devices to cores.
//!
//! [`Pollux::open`] takes a configuration, reaches each device, makes pools that are large enough,
//! and brings the ports up. [`Pollux::close`], or dropping it, tells the lcores to stop, closes the
//! ports and lets the emulator go, in that order; queues that are still out are inert then.

use crate::lcore::{EmulatorPlace, Lcores, default_cpus};
use crate::{Config, DeviceSpec, Error, Lcore, LcoreHandle, MemoryConfig, Port, device};
use pollux_bus::vfio::{self, Container};
use pollux_bus::{Function, vfio_user};
use pollux_mempool::{
    NodeId, PageChoice, PageSize, Pool, PoolConfig, Segment, lcore as slots, topology,
};
use pollux_mlx5::{CloseReport as PortCloseReport, OpenOptions};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "emu")]
use crate::EmulatorHandle;

/// How long [`Pollux::close`] waits for lcores.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Pollux {
    // In this order: ports go before the emulator that plays their devices.
    ports: Vec<Port>,
    #[cfg(feature = "emu")]
    emulator: Option<EmulatorHandle>,
    lcores: Lcores,
    cpus: Vec<usize>,
    pools: Vec<(Option<NodeId>, Pool)>,
}

/// What closing met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// By port.
    pub ports: Vec<PortCloseReport>,
    /// Lcores that had not ended when the ports were closed.
    pub lcores_left: usize,
    /// Packet buffers that the application still holds.
    pub buffers_out: usize,
}

/// Where packet buffers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSummary {
    /// The pool's name.
    pub name: String,
    /// Number of buffers.
    pub buffers: usize,
    /// Bytes of each, headroom included.
    pub buffer_bytes: usize,
    /// Bytes in all.
    pub bytes: usize,
    /// The pages under them.
    pub page_size: PageSize,
    /// The NUMA node they are on, if they were bound to one.
    pub node: Option<NodeId>,
    /// Buffers that are free now.
    pub free: usize,
    /// What went less well than asked, what it costs, and what mends it.
    pub warnings: Vec<String>,
}

impl fmt::Display for PoolSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            buffers,
            buffer_bytes,
            bytes,
            page_size,
            node,
            ..
        } = self;
        write!(f, "{name}: {buffers} buffers of {buffer_bytes} bytes")?;
        write!(f, " ({} KiB) on {page_size} pages, ", bytes / 1024)?;
        match node {
            Some(node) => write!(f, "NUMA node {node}"),
            None => f.write_str("not bound to a NUMA node"),
        }
    }
}

impl Pollux {
    /// Opens all devices of the configuration.
    ///
    /// # Errors
    /// Whatever is wrong with the configuration, the machine or a device; nothing is left behind
    /// then.
    pub fn open(config: &Config) -> Result<Self, Error> {
        config.check()?;
        let allowed = slots::allowed_cpus();
        let cpus = match config.lcores.as_slice() {
            [] => default_cpus(allowed, 1),
            given => given.to_vec(),
        };
        if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(Error::Setting {
                what: "lcores",
                given: cpu.to_string(),
                allowed: format!("CPUs {}", topology::ranges(allowed)),
                remedy: "choose among those, or widen the set (taskset, cpuset of the container)"
                    .to_owned(),
            });
        }
        let named = match config.devices.as_slice() {
            [] => vec![device::default_device()?],
            given => given.to_vec(),
        };
        let specs = named
            .into_iter()
            .map(|text| DeviceSpec::parse(&text).map(|spec| (text, spec)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut found = Found::default();
        for (text, spec) in specs {
            found.reach(&text, &spec, allowed, &cpus)?;
        }
        let devices = found
            .functions
            .into_iter()
            .enumerate()
            .map(|(number, function)| open_port(function, number, config))
            .collect::<Result<Vec<_>, _>>()?;
        let pools = make_pools(config, &devices, cpus.len())?;
        let ports = devices
            .into_iter()
            .filter_map(|device| {
                let key = socket(&config.memory, device.info().node);
                let own = pools.iter().find(|(node, _)| *node == key)?.1.clone();
                let others = pools
                    .iter()
                    .filter(|(node, _)| *node != key)
                    .map(|(_, p)| p.clone())
                    .collect();
                Some(Port::new(
                    device,
                    config.port.clone(),
                    own,
                    others,
                    cpus.len(),
                ))
            })
            .collect();
        #[cfg(feature = "emu")]
        let place = found
            .emulator
            .as_ref()
            .map_or(EmulatorPlace::Elsewhere, EmulatorHandle::place);
        #[cfg(not(feature = "emu"))]
        let place = EmulatorPlace::Elsewhere;
        Ok(Self {
            ports,
            #[cfg(feature = "emu")]
            emulator: found.emulator,
            lcores: Lcores::new(place),
            cpus,
            pools,
        })
    }

    /// The ports, by number.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// One port.
    ///
    /// # Errors
    /// [`Error::Setting`] when there is none of this number.
    pub fn port(&self, number: usize) -> Result<&Port, Error> {
        self.ports.get(number).ok_or_else(|| Error::Setting {
            what: "port",
            given: number.to_string(),
            allowed: match self.ports.len() {
                1 => "port 0".to_owned(),
                there => format!("ports 0 to {}", there.saturating_sub(1)),
            },
            remedy: "choose one of those, or name more devices".to_owned(),
        })
    }

    /// The CPUs meant for lcores, as configured or chosen.
    pub fn lcores(&self) -> &[usize] {
        &self.cpus
    }

    /// The emulator, if one plays the devices.
    #[cfg(feature = "emu")]
    pub fn emulator(&self) -> Option<&EmulatorHandle> {
        self.emulator.as_ref()
    }

    /// Whether the wires of an emulator have run dry: no frame is left to come, and none to go.
    /// Frames may still wait in receive queues, so poll until nothing comes before leaving. An
    /// adapter's wire never runs dry.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn drained(&self) -> Result<bool, Error> {
        #[cfg(feature = "emu")]
        if let Some(emulator) = &self.emulator {
            return emulator.drained();
        }
        Ok(false)
    }

    /// Sleeps until the wires of an emulator have run dry (see [`drained`](Self::drained)); for
    /// ever with adapters.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn wait_drained(&self) -> Result<(), Error> {
        while !self.drained()? {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether any port's device is played by a program: figures say nothing about an adapter then.
    pub fn is_emulated(&self) -> bool {
        self.ports.iter().any(|port| port.info().identity.emulated)
    }

    /// The pools, one per NUMA node that ports are on.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map(|(_, pool)| pool)
    }

    /// Where packet memory is.
    pub fn memory(&self) -> Vec<PoolSummary> {
        self.pools().map(summary).collect()
    }

    /// What costs packets or speed without being an error: pages, binding, sizes, far nodes.
    pub fn warnings(&self) -> Vec<String> {
        let topology = topology::current();
        let mut all: Vec<String> = self.pools().flat_map(Pool::warnings).collect();
        all.extend(self.ports.iter().flat_map(Port::warnings));
        for port in &self.ports {
            for cpu in &self.cpus {
                let ends = port.info().node.zip(topology.node_of_cpu(*cpu));
                if let Some((far, near)) = ends.filter(|(far, near)| far != near) {
                    all.push(format!(
                        "lcore {cpu} is on NUMA node {near}, port {} on node {far}: every packet crosses nodes; choose a CPU of node {far}",
                        port.index()
                    ));
                }
            }
        }
        for cpu in self.cpus.iter().filter(|cpu| self.lcores.shares(**cpu)) {
            all.push(format!(
                "lcore {cpu} shares its CPU with the emulator and yields when idle; allow one CPU more for speed"
            ));
        }
        all
    }

    /// Starts `work` on a thread of its own, pinned to `cpu`; returns when it is pinned.
    ///
    /// # Errors
    /// A CPU outside the set allowed to this process, one that runs an lcore already, or no slot
    /// or thread left.
    pub fn spawn<T, F>(&self, cpu: usize, work: F) -> Result<LcoreHandle<T>, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Lcore) -> T + Send + 'static,
    {
        self.lcores.spawn(cpu, work)
    }

    /// Tells the lcores to stop and waits for them (5 s at most), then closes the ports. Queues that
    /// are still out are inert. May be called again.
    ///
    /// # Errors
    /// The first thing that went wrong; every port is closed all the same.
    pub fn close(&self) -> Result<CloseReport, Error> {
        let lcores_left = self.lcores.stop(PATIENCE);
        let closed: Vec<_> = self.ports.iter().map(Port::close).collect();
        let ports = closed.into_iter().collect::<Result<Vec<_>, _>>()?;
        let buffers_out = self.pools().map(Pool::in_use).sum();
        Ok(CloseReport {
            ports,
            lcores_left,
            buffers_out,
        })
    }
}

impl Drop for Pollux {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "closing");
        }
    }
}

/// The functions of the device strings, in order.
#[derive(Default)]
struct Found {
    functions: Vec<Arc<dyn Function>>,
    /// The IOMMU domain that adapters share, once there is one.
    container: Option<Container>,
    #[cfg(feature = "emu")]
    emulator: Option<EmulatorHandle>,
}

impl Found {
    fn reach(
        &mut self,
        text: &str,
        spec: &DeviceSpec,
        allowed: &[usize],
        lcores: &[usize],
    ) -> Result<(), Error> {
        match spec {
            DeviceSpec::Emulated(settings) => self.emulate(text, settings, allowed, lcores),
            DeviceSpec::Pci { address, settings } => self.adapter(text, address, settings),
            DeviceSpec::VfioUser { path, settings } => {
                self.functions
                    .push(vfio_user_function(text, path, settings)?);
                Ok(())
            }
        }
    }

    /// A function bound to vfio-pci. All share one IOMMU domain, so that a pool is mapped once,
    /// except those that ask for their own.
    fn adapter(
        &mut self,
        text: &str,
        address: &str,
        settings: &[crate::Setting],
    ) -> Result<(), Error> {
        let bad = |reason| Error::Device {
            given: text.to_owned(),
            reason,
        };
        let unreached = |source| Error::Unreached {
            given: text.to_owned(),
            source: Box::new(source),
        };
        let (mut token, mut own) = (None, false);
        for setting in settings {
            match (setting.key.as_str(), setting.value.as_str()) {
                ("vf_token", uuid) => token = Some(uuid),
                ("container", "own") => own = true,
                ("container", "shared") => own = false,
                ("container", other) => {
                    return Err(bad(format!("container={other}; allowed: own, shared")));
                }
                (key, _) => {
                    return Err(bad(format!(
                        "{key} is no setting of an adapter; allowed: vf_token=UUID, container=own|shared"
                    )));
                }
            }
        }
        // What is wrong with the function is better to know than what is wrong with the machine.
        vfio::look(address).map_err(unreached)?;
        let container = match (&self.container, own) {
            (Some(shared), false) => shared.clone(),
            _ => Container::new().map_err(unreached)?,
        };
        let function = vfio::open(&container, address, token).map_err(unreached)?;
        if !own {
            self.container = Some(container);
        }
        check_vendor(text, function.as_ref(), "name another address")?;
        self.functions.push(function);
        Ok(())
    }

    #[cfg(feature = "emu")]
    fn emulate(
        &mut self,
        text: &str,
        settings: &[crate::Setting],
        allowed: &[usize],
        lcores: &[usize],
    ) -> Result<(), Error> {
        if self.emulator.is_some() {
            return Err(Error::Device {
                given: text.to_owned(),
                reason: "an emulator was named before; name one, with ports=N for more ports"
                    .into(),
            });
        }
        let emulator = EmulatorHandle::new(settings, allowed, lcores, self.functions.len())?;
        for function in 0..emulator.functions() {
            self.functions.push(emulator.connect(function)?);
        }
        self.emulator = Some(emulator);
        Ok(())
    }

    #[cfg(not(feature = "emu"))]
    fn emulate(
        &mut self,
        text: &str,
        _: &[crate::Setting],
        _: &[usize],
        _: &[usize],
    ) -> Result<(), Error> {
        Err(Error::Device {
            given: text.to_owned(),
            reason: "this build has no emulator; build it with the feature `emu`".into(),
        })
    }
}

/// PCI vendor id of all mlx5 adapters.
const MELLANOX: u16 = 0x15b3;

/// The function behind a vfio-user socket.
fn vfio_user_function(
    text: &str,
    path: &str,
    settings: &[crate::Setting],
) -> Result<Arc<dyn Function>, Error> {
    let bad = |reason| Error::Device {
        given: text.to_owned(),
        reason,
    };
    if let Some(setting) = settings.first() {
        return Err(bad(format!(
            "{} is no setting of a device behind a socket, it has none; set it where the device is served",
            setting.key
        )));
    }
    let function = vfio_user::connect(path).map_err(|source| Error::Unreached {
        given: text.to_owned(),
        source: Box::new(source),
    })?;
    check_vendor(text, function.as_ref(), "name another socket")?;
    Ok(function)
}

fn check_vendor(text: &str, function: &dyn Function, remedy: &str) -> Result<(), Error> {
    let identity = function.identity();
    if identity.vendor == MELLANOX {
        return Ok(());
    }
    Err(Error::Device {
        given: text.to_owned(),
        reason: format!(
            "the device there is {:04x}:{:04x}, no mlx5 adapter (vendor {MELLANOX:04x}); {remedy}",
            identity.vendor, identity.device
        ),
    })
}

fn open_port(
    function: Arc<dyn Function>,
    number: usize,
    config: &Config,
) -> Result<pollux_mlx5::Port, Error> {
    let memory = &config.memory;
    let options = OpenOptions {
        number: u16::try_from(number).unwrap_or(u16::MAX),
        node: memory.node(),
        pages: match memory.pages {
            crate::Pages::Ordinary => PageChoice::Ordinary,
            // Rings are small; only packet memory must be on the pages asked for.
            _ => PageChoice::BestEffort,
        },
        firmware_pages: (&config.firmware).into(),
        init_deadline: Duration::from_millis(config.firmware.start_ms),
        ..OpenOptions::default()
    };
    Ok(pollux_mlx5::Port::open(function, options)?)
}

/// The node that a port's packets are on. The one place that decides it, for making pools and for
/// finding them.
fn socket(memory: &MemoryConfig, port: Option<NodeId>) -> Option<NodeId> {
    memory
        .node()
        .or_else(|| port.filter(|node| topology::current().nodes().contains(node)))
}

fn make_pools(
    config: &Config,
    devices: &[pollux_mlx5::Port],
    lcores: usize,
) -> Result<Vec<(Option<NodeId>, Pool)>, Error> {
    let (memory, port) = (&config.memory, &config.port);
    let mut nodes: Vec<Option<NodeId>> = devices
        .iter()
        .map(|device| socket(memory, device.info().node))
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    // A packet may wait in the transmit ring of any port, so each pool must fill them all.
    let descriptors = devices.len()
        * (port.rx_queues * port.rx_descriptors + port.tx_queues * port.tx_descriptors);
    let needed = PoolConfig::needed(descriptors, lcores, crate::BURST, memory.cache);
    nodes
        .into_iter()
        .map(|node| {
            let name = node.map_or_else(|| "packets".to_owned(), |node| format!("packets{node}"));
            let pool = PoolConfig::new(name, memory.mbufs.unwrap_or(needed))
                .data_room(memory.data_room)
                .headroom(memory.headroom)
                .cache(memory.cache)
                .node(node)
                .page(memory.pages.into());
            Ok((node, Pool::new(&pool)?))
        })
        .collect()
}

fn summary(pool: &Pool) -> PoolSummary {
    let chunks = pool.chunks();
    PoolSummary {
        name: pool.name().to_owned(),
        buffers: pool.count(),
        buffer_bytes: pool.data_room() + pool.headroom(),
        bytes: chunks.iter().map(Segment::len).sum(),
        page_size: chunks
            .first()
            .map_or_else(PageSize::ordinary, Segment::page_size),
        node: chunks.first().and_then(Segment::node),
        free: pool.available(),
        warnings: pool.warnings(),
    }
}
