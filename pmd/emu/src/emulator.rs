//! [`Emulator`]: all functions of one software adapter, and the thread that moves their packets.
//!
//! Made from a configuration; lives as long as anybody wants packets moved. A function is reached
//! by a backing of `pollux-bus`, never through a type of this crate.

use crate::card::Module;
use crate::config::{EmulatorConfig, FunctionConfig, MAX_FUNCTIONS, MAX_VECTORS};
use crate::data::{DataFunction, DataPlane, DataPlaneConfig, Features};
use crate::error::EmuError;
use crate::faults::FaultInjector;
use crate::firmware::Character;
use crate::function::{
    END_UAR, EmulatedFunction, FIRST_MAPPED_UAR, FIRST_UAR, FunctionReport, Inbox, REGION, Shared,
    UAR_PAGE, VENDOR,
};
use crate::init_segment::{InitSegment, SegmentPlan};
use crate::observe::CommandWatcher;
use crate::profile::Profile;
use crate::wire::WireReport;
use pollux_bus::{Device, Identity};
use pollux_mempool::{PageChoice, Segment, SegmentRequest, Window};
use pollux_prm::command_queue::CMD_INTERFACE_REV;
use pollux_prm::commands::capability::CapGroup;
use std::sync::Arc;

/// A software adapter.
pub struct Emulator {
    // Before the plane, so that drivers are disconnected while it still answers.
    functions: Vec<Arc<EmulatedFunction>>,
    _plane: DataPlane,
}

impl std::fmt::Debug for Emulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Emulator")
            .field("functions", &self.functions.len())
            .finish()
    }
}

/// What a function is, before the data side knows of it.
struct Plan {
    character: Character,
    segment: SegmentPlan,
    device: u16,
    module: Module,
    uars: Window,
    inbox: Arc<Inbox>,
}

impl Emulator {
    /// Makes the functions, opens their wires and starts the data thread.
    ///
    /// # Errors
    /// A configuration that cannot be ([`EmuError::Value`], [`EmuError::Combination`]), a wire that
    /// cannot be opened ([`EmuError::Data`]), no memory for register pages ([`EmuError::Memory`]).
    pub fn new(config: EmulatorConfig) -> Result<Self, EmuError> {
        let there = config.functions.len();
        if !(1..=MAX_FUNCTIONS).contains(&there) {
            return Err(EmuError::Value {
                key: "ports".into(),
                given: there.to_string(),
                allowed: format!("1 to {MAX_FUNCTIONS}"),
            });
        }
        let mut plans = Vec::with_capacity(there);
        let mut functions = Vec::with_capacity(there);
        for (number, function) in config.functions.iter().enumerate() {
            let plan = plan(number, function)?;
            functions.push(data_function(&plan, function));
            plans.push(plan);
        }
        let plane = DataPlane::start(DataPlaneConfig {
            strict: config.strict,
            cpu: config.data_cpu,
            idle: config.idle,
            functions,
        })?;
        let functions = plans
            .into_iter()
            .enumerate()
            .map(|(number, plan)| {
                let identity = Identity {
                    name: format!("emu{number}"),
                    vendor: VENDOR,
                    device: plan.device,
                    emulated: true,
                    node: None,
                };
                let segment = Arc::new(InitSegment::new(plan.segment));
                let data = plane.port(number)?;
                if !plan.module.works() {
                    data.set_wire(false)?;
                }
                let shared = Shared::new(identity, plan.character, data, plan.inbox, segment);
                shared.faults.plug(plan.module);
                Ok(Arc::new(EmulatedFunction::new(Arc::new(shared), plan.uars)))
            })
            .collect::<Result<_, EmuError>>()?;
        Ok(Self {
            functions,
            _plane: plane,
        })
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none, which cannot be.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    fn get(&self, number: usize) -> Result<&Arc<EmulatedFunction>, EmuError> {
        let there = self.functions.len();
        self.functions.get(number).ok_or(EmuError::Function {
            asked: number,
            there,
        })
    }

    /// A function, for a backing to serve.
    ///
    /// # Errors
    /// [`EmuError::Function`].
    pub fn function(&self, number: usize) -> Result<Arc<dyn Device>, EmuError> {
        Ok(Arc::clone(self.get(number)?) as Arc<dyn Device>)
    }

    /// What a function's firmware did and holds.
    ///
    /// # Errors
    /// [`EmuError::Function`].
    pub fn report(&self, number: usize) -> Result<FunctionReport, EmuError> {
        Ok(self.get(number)?.shared.report())
    }

    /// What a function's wire did.
    ///
    /// # Errors
    /// [`EmuError::Function`], [`EmuError::Data`].
    pub fn wire(&self, number: usize) -> Result<WireReport, EmuError> {
        Ok(self.get(number)?.shared.data.wire()?)
    }

    /// A handle on a function's faults.
    ///
    /// # Errors
    /// [`EmuError::Function`].
    pub fn faults(&self, number: usize) -> Result<FaultInjector, EmuError> {
        let shared = &self.get(number)?.shared;
        let inbox = Arc::clone(&shared.inbox);
        let wake = Arc::new(move || inbox.poke());
        Ok(FaultInjector::new(
            Arc::clone(&shared.faults),
            shared.data.clone(),
            Arc::clone(&shared.segment),
            wake,
        ))
    }

    /// Has each command of a function told to `watcher`, or to nobody. It is called on the
    /// function's command thread, between the command and its answer's event.
    ///
    /// # Errors
    /// [`EmuError::Function`].
    pub fn watch_commands(
        &self,
        number: usize,
        watcher: Option<CommandWatcher>,
    ) -> Result<(), EmuError> {
        self.get(number)?.shared.watched.set(watcher);
        Ok(())
    }

    /// The MAC address that a function was made with.
    ///
    /// # Errors
    /// [`EmuError::Function`].
    pub fn mac(&self, number: usize) -> Result<[u8; 6], EmuError> {
        Ok(self.get(number)?.shared.character.mac)
    }
}

fn plan(number: usize, config: &FunctionConfig) -> Result<Plan, EmuError> {
    let mut profile = Profile::of(config.model)?;
    for less in &config.cap {
        less.apply(&mut profile)?;
    }
    let profile = Arc::new(profile);
    let speed = config.speed.unwrap_or(profile.speed_mbps);
    if !profile.speeds_mbps.contains(&speed) {
        let speeds: Vec<String> = profile.speeds_mbps.iter().map(u32::to_string).collect();
        return Err(EmuError::Value {
            key: format!("speed{number}"),
            given: speed.to_string(),
            allowed: format!("one of {} for a {}", speeds.join(", "), profile.name),
        });
    }
    let within = |key: &str, given: u64, most: u64| {
        let wrong = || EmuError::Value {
            key: format!("{key}{number}"),
            given: given.to_string(),
            allowed: format!("1 to {most}"),
        };
        if (1..=most).contains(&given) {
            Ok(())
        } else {
            Err(wrong())
        }
    };
    // Beyond any host's memory, and both together a number that QUERY_PAGES has.
    const MOST_PAGES: u64 = 1 << 30;
    within("vectors", config.vectors as u64, MAX_VECTORS as u64)?;
    within("boot_pages", config.boot_pages.into(), MOST_PAGES)?;
    within("init_pages", config.init_pages.into(), MOST_PAGES)?;
    within(
        "spare_pages",
        config.spare_pages.into(),
        config.init_pages.into(),
    )?;
    // As long as the register region, so that a page's place in the file is its place there:
    // backings that pass the file on may have one offset for all of it.
    let request = SegmentRequest::new(format!("emu{number} registers"), REGION as usize)
        .page(PageChoice::Ordinary);
    let first = u64::from(FIRST_MAPPED_UAR) * UAR_PAGE;
    let uars = Segment::map(&request)?.window(first as usize, (REGION - first) as usize)?;
    let segment = SegmentPlan {
        version: config.firmware.unwrap_or(profile.firmware),
        hardware: profile.hardware_id,
        timer_khz: profile.timer_khz,
        interface_revision: config.cmdif.unwrap_or(CMD_INTERFACE_REV),
        starting: config.starting,
        syndrome: config.syndrome,
    };
    let device = config.device_id.unwrap_or(profile.device);
    let character = Character {
        mac: config.mac.unwrap_or([0x02, 0x15, 0xb3, 0, 0, number as u8]),
        boot_pages: config.boot_pages,
        init_pages: config.init_pages,
        spare_pages: config.spare_pages,
        vectors: config.vectors,
        uars: FIRST_UAR..END_UAR,
        first_mapped_uar: FIRST_MAPPED_UAR,
        speed,
        storm: config.storm.clone(),
        profile,
    };
    Ok(Plan {
        character,
        segment,
        device,
        module: config.module,
        uars,
        inbox: Arc::default(),
    })
}

fn data_function(plan: &Plan, config: &FunctionConfig) -> DataFunction {
    let profile = &plan.character.profile;
    let ethernet = |path| profile.max(CapGroup::ETHERNET_OFFLOADS, path);
    let lso = ethernet("max_lso_cap");
    let inbox = Arc::clone(&plan.inbox);
    DataFunction {
        uars: plan.uars.clone(),
        first_uar: FIRST_MAPPED_UAR,
        log_bf_reg_size: profile.max(CapGroup::GENERAL, "log_bf_reg_size") as u32,
        features: Features {
            tx_checksum: ethernet("csum_cap") == 1,
            rx_checksum_full: ethernet("cqe_checksum_full") == 1,
            tx_vlan_insert: ethernet("wqe_vlan_insert") == 1,
            max_lso: if lso == 0 { 0 } else { 1 << lso.min(31) },
        },
        frequency_khz: profile.timer_khz,
        wire: config.wire.clone(),
        events: Box::new(move |event| inbox.data_event(event)),
    }
}
