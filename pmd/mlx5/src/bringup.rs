//! Bring-up and teardown of one function: from registers to a running adapter with event queues,
//! a protection domain and a transport domain, and back.
//!
//! The order is firmware's (kernel `mlx5_function_setup`, rdma-core `mlx5_vfio_setup_function`).
//! Each step that made something pushes its undo; a failure at any step, and the end, unwind
//! exactly what was done. Where the device does not obey any more, it is cut off from memory and
//! reset, so that a second try starts clean.

use crate::capability::{self, Capabilities};
use crate::config::OpenOptions;
use crate::control::{Blocks, Control, ControlParts, Queue};
use crate::dma::{Carver, DmaMemory};
use crate::eq::{EqKind, Ring};
use crate::error::{CommandFailure, Error};
use crate::family::{self, Kin};
use crate::health;
use crate::init_segment::{FirmwareVersion, InitSegment};
use crate::needs::{self, Without};
use crate::pages::{FunctionKey, Outcome, PageBacking, room};
use crate::stack::{Graveyard, Stack};
use pollux_bus::{Function, Iova, Registers};
use pollux_mempool::{NodeId, PageChoice, SegmentRequest};
use pollux_prm::command::{Command, Status};
use pollux_prm::commands::eq::{AllocUar, CreateEq, CreateEqOut, DeallocUar, DestroyEq};
use pollux_prm::commands::hca::{
    DisableHca, EnableHca, InitHca, QueryAdapter, QueryIssi, SetDriverVersion, SetIssi,
    TeardownHca, TeardownProfile,
};
use pollux_prm::commands::pages::{PagesKind, QueryPages};
use pollux_prm::commands::protection::{
    AllocPd, AllocTransportDomain, DeallocPd, DeallocTransportDomain,
};
use pollux_prm::commands::register::{HostEndianness, Register, RegisterAccess};
use pollux_prm::opcode::Opcode;
use pollux_prm::wqe::uar;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Time between two looks at the initializing bit.
const INITIALIZING_LOOK: Duration = Duration::from_millis(2);
/// When it is first said that firmware is waited for, and how often then.
const FIRST_WORD: Duration = Duration::from_secs(1);
const NEXT_WORD: Duration = Duration::from_secs(5);
/// How long registers may read as all ones while firmware starts.
const SILENCE: Duration = Duration::from_secs(5);
/// How long firmware may return no page before taking them back is given up; no longer than a
/// command.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(5);
/// Interface step that the driver speaks.
const ISSI: u16 = 1;

/// A running function.
pub(crate) struct Device {
    pub(crate) function: Arc<dyn Function>,
    pub(crate) name: String,
    pub(crate) node: Option<NodeId>,
    pub(crate) control: Control,
    pub(crate) firmware: FirmwareVersion,
    pub(crate) capabilities: Capabilities,
    /// What the adapter does not offer.
    pub(crate) without: Without,
    /// What is less than it could be, in sentences.
    pub(crate) shortcomings: Vec<String>,
    /// Board identity of the adapter.
    pub(crate) psid: String,
    /// Protection domain.
    pub(crate) pd: u32,
    /// Transport domain.
    pub(crate) transport_domain: u32,
    /// Event queue that completion queues name.
    pub(crate) completion_eq: u8,
    /// UAR page of the control plane.
    pub(crate) uar_page: u32,
    /// Pages for control plane and rings.
    pub(crate) pages: PageChoice,
    stack: Stack,
    pub(crate) graveyard: Graveyard,
    closed: bool,
}

/// What closing a function has met.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// What failed, in order.
    pub(crate) errors: Vec<Error>,
    /// Pages that firmware did not return.
    pub(crate) pages_kept: usize,
    /// Whether the function had to be reset.
    pub(crate) reset: bool,
}

impl Device {
    /// Brings a function up.
    ///
    /// # Errors
    /// The first step that failed; everything before it is undone.
    pub(crate) fn open(function: Arc<dyn Function>, options: &OpenOptions) -> Result<Self, Error> {
        let name = function.identity().name.clone();
        options.firmware_pages.check(function.identity().emulated)?;
        let node = options.node.or(function.identity().node.map(NodeId));
        let mut shortcomings = Vec::new();
        let identity = function.identity();
        match family::kin(identity) {
            Kin::Known(_) => {}
            Kin::Unknown => shortcomings.push(family::unknown(identity)),
            Kin::Other { what, remedy } => {
                return Err(Error::NotMlx5 {
                    function: name,
                    vendor: identity.vendor,
                    device: identity.device,
                    what,
                    remedy,
                });
            }
        }
        let segment = InitSegment::new(function.as_ref())?;
        if !segment.answers() {
            return Err(silent(&name));
        }
        wait_initialized(&name, &segment, options.init_deadline)?;
        match health::before_start(&segment)? {
            (Some(fault), _) => {
                return Err(Error::Health {
                    function: name,
                    fault,
                });
            }
            (None, Some(syndrome)) => shortcomings.push(format!(
                "firmware reports health syndrome {syndrome} and goes on; look at dmesg of the time when the kernel's driver had it"
            )),
            (None, None) => {}
        }
        let blocks = Blocks {
            name: name.clone(),
            domain: Arc::clone(function.domain()),
            node,
            pages: options.pages,
            backing: options.firmware_pages.backing,
        };
        let queue = Queue::new(&name, &segment, &blocks, &options.firmware_pages)?;
        let address = queue.address();
        let wanted = EqKind::ALL.len().min(function.vectors());
        let interrupts = function.enable_interrupts(wanted)?;
        let control = Control::start(ControlParts {
            name: name.clone(),
            segment: segment.clone(),
            queue,
            interrupts,
            blocks,
            pages: options.firmware_pages,
            patience: options.command_deadline,
        });
        let control = match control {
            Ok(control) => control,
            Err(error) => {
                function.disable_interrupts()?;
                return Err(error);
            }
        };
        let mut device = Self {
            function,
            name,
            node,
            control,
            firmware: FirmwareVersion::default(),
            capabilities: Capabilities::none(),
            without: Without::default(),
            shortcomings,
            psid: String::new(),
            pd: 0,
            transport_domain: 0,
            completion_eq: 0,
            uar_page: 0,
            pages: options.pages,
            stack: Stack::default(),
            graveyard: Graveyard::default(),
            closed: false,
        };
        match device.bring_up(&segment, address, options) {
            Ok(()) => Ok(device),
            Err(error) => {
                let closed = device.close();
                tracing::debug!(?closed, "bring-up undone");
                Err(error)
            }
        }
    }

    fn bring_up(
        &mut self,
        segment: &InitSegment,
        queue: Iova,
        options: &OpenOptions,
    ) -> Result<(), Error> {
        self.function.set_bus_master(true)?;
        segment.set_queue(queue)?;
        wait_initialized(&self.name, segment, options.init_deadline)?;
        self.firmware = segment.firmware()?;

        self.control.execute::<EnableHca>(&EnableHca::request())?;
        self.stack
            .destroy::<DisableHca>("HCA enabled", DisableHca::request());
        self.set_issi()?;
        let name = self.name.clone();
        // Firmware that could not be stopped does not return its pages either.
        let runs_on = Arc::new(AtomicBool::new(false));
        let stuck = Arc::clone(&runs_on);
        let patience = RECLAIM_PATIENCE.min(options.command_deadline);
        self.stack.push("pages", move |control, _| {
            let stuck = stuck.load(Ordering::Relaxed);
            reclaim(
                &name,
                control,
                if stuck { Duration::ZERO } else { patience },
            )
        });
        self.startup_pages(PagesKind::BOOT, options)?;
        self.set_host_endianness()?;
        capability::configure(&self.control, options.command_signatures)?;
        self.control.verify_signatures(options.command_signatures);
        self.startup_pages(PagesKind::INIT, options)?;
        self.control.execute::<InitHca>(&InitHca::request())?;
        self.stack.push("HCA started", move |control, _| {
            let mut teardown = TeardownHca::request();
            teardown.set_profile(TeardownProfile::GRACEFUL_CLOSE.0);
            control
                .execute::<TeardownHca>(&teardown)
                .map(drop)
                .map_err(|failure| {
                    runs_on.store(true, Ordering::Relaxed);
                    failure.into()
                })
        });

        self.capabilities = Capabilities::read(&self.control)?;
        self.without = needs::check(&self.capabilities, self.function.identity())?;
        self.shortcomings.extend(self.without.said());
        self.control.watch_health(true);
        self.stack.push("health watched", |control, _| {
            control.watch_health(false);
            Ok(())
        });
        self.set_driver_version()?;
        self.read_adapter()?;
        self.create_event_queues()?;

        let pd = self.control.execute::<AllocPd>(&AllocPd::request())?.pd();
        self.pd = pd;
        let mut dealloc = DeallocPd::request();
        dealloc.set_pd(pd)?;
        self.stack.destroy::<DeallocPd>("PD", dealloc);
        let out = self
            .control
            .execute::<AllocTransportDomain>(&AllocTransportDomain::request())?;
        self.transport_domain = out.transport_domain();
        let mut dealloc = DeallocTransportDomain::request();
        dealloc.set_transport_domain(self.transport_domain)?;
        self.stack
            .destroy::<DeallocTransportDomain>("transport domain", dealloc);
        Ok(())
    }

    fn set_issi(&self) -> Result<(), Error> {
        let issi = match self.control.execute::<QueryIssi>(&QueryIssi::request()) {
            // Firmware from before there were steps.
            Err(CommandFailure::Refused(refusal)) if refusal.status == Status::BAD_OP_ERR => {
                return Err(Error::Unsupported {
                    function: self.name.clone(),
                    lacks: format!("speaks interface step 0 and not {ISSI}: {refusal}"),
                    remedy: "update its firmware",
                });
            }
            other => other?,
        };
        if issi.supported_issi_dw0() >> ISSI & 1 == 0 {
            return Err(Error::Unsupported {
                function: self.name.clone(),
                lacks: format!(
                    "speaks interface steps {:#x} and not {ISSI}",
                    issi.supported_issi_dw0()
                ),
                remedy: "update its firmware",
            });
        }
        let mut input = SetIssi::request();
        input.set_current_issi(ISSI);
        self.control.execute::<SetIssi>(&input)?;
        Ok(())
    }

    fn startup_pages(&self, kind: PagesKind, options: &OpenOptions) -> Result<(), Error> {
        let mut input = QueryPages::request();
        input.set_op_mod(kind.0);
        let wanted = self.control.execute::<QueryPages>(&input)?;
        let key = FunctionKey {
            function: wanted.function_id(),
            embedded: wanted.embedded_cpu_function(),
        };
        tracing::debug!(%kind, count = wanted.count(), %key, "start-up pages");
        if options.firmware_pages.backing == PageBacking::Populated {
            if let Some(why) = room::lacking(wanted.count()) {
                return Err(Error::NoPages {
                    function: self.name.clone(),
                    count: wanted.count(),
                    why,
                });
            }
        }
        match self.control.startup_pages(key, wanted.count()) {
            Some(Outcome::Done) => Ok(()),
            Some(Outcome::Failed(failure)) => Err(failure.into()),
            Some(Outcome::NoMemory(why)) => Err(Error::NoPages {
                function: self.name.clone(),
                count: wanted.count(),
                why,
            }),
            None => Err(CommandFailure::Closed {
                opcode: Opcode::MANAGE_PAGES,
            }
            .into()),
        }
    }

    /// Says that the host is little-endian, or what it is.
    fn set_host_endianness(&self) -> Result<(), Error> {
        let mut register = HostEndianness::zeroed();
        register.set_he(cfg!(target_endian = "big"));
        let input = register.access(RegisterAccess::WRITE);
        let output_len = input.len();
        self.control.execute_bytes(input, output_len)?;
        Ok(())
    }

    /// Tells the name of the driver to firmware that wants to know it.
    fn set_driver_version(&self) -> Result<(), Error> {
        if !self.capabilities.general.driver_version() {
            return Ok(());
        }
        let text = concat!("Linux,pollux,", env!("CARGO_PKG_VERSION"));
        let mut version = [0; 64];
        for (to, from) in version.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        let mut input = SetDriverVersion::request();
        input.set_driver_version(version);
        match self.control.execute::<SetDriverVersion>(&input) {
            // It only informs; a function that refuses it works all the same.
            Err(CommandFailure::Refused(refusal)) => {
                tracing::debug!(%refusal, "driver version not told");
                Ok(())
            }
            other => Ok(other.map(drop)?),
        }
    }

    fn read_adapter(&mut self) -> Result<(), Error> {
        let adapter = self
            .control
            .execute::<QueryAdapter>(&QueryAdapter::request())?;
        let psid = adapter.query_adapter_struct().vsd_contd_psid();
        self.psid = psid
            .iter()
            .take_while(|byte| byte.is_ascii_graphic())
            .map(|byte| char::from(*byte))
            .collect();
        Ok(())
    }

    fn create_event_queues(&mut self) -> Result<(), Error> {
        let (page_number, page) = self.alloc_uar()?;
        self.uar_page = page_number;
        let mut dealloc = DeallocUar::request();
        dealloc.set_uar(page_number)?;
        self.stack
            .destroy::<DeallocUar>("UAR page of the event queues", dealloc);
        let bytes: usize = EqKind::ALL.iter().map(|kind| kind.bytes()).sum();
        // Each ring is aligned to its own size, and the block to all of them; the largest goes
        // first, so nothing is lost.
        let request = SegmentRequest::new(format!("event queues of {}", self.name), bytes)
            .node(self.node)
            .page(PageChoice::Ordinary);
        let block = DmaMemory::new(self.function.domain(), &request)?;
        let mut carver = Carver::new(block);
        let mut kinds = EqKind::ALL;
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes()));
        let mut rings = Vec::new();
        for kind in kinds {
            rings.push((kind, carver.take(kind.bytes(), kind.bytes())?));
        }
        for kind in EqKind::ALL {
            let at = rings.iter().position(|(of, _)| *of == kind);
            if let Some(at) = at {
                let (_, memory) = rings.swap_remove(at);
                self.create_event_queue(kind, memory, page_number, &page)?;
            }
        }
        Ok(())
    }

    fn create_event_queue(
        &mut self,
        kind: EqKind,
        memory: DmaMemory,
        page_number: u32,
        page: &Registers,
    ) -> Result<(), Error> {
        let ring = Ring::new(kind, memory)?;
        let vector = kind.vector(self.function.vectors());
        let input = ring.create(kind, page_number, vector)?;
        let output = self.control.execute_bytes(input, CreateEq::output_len(0))?;
        let damaged = |_| CommandFailure::Damaged {
            opcode: Opcode::CREATE_EQ,
            what: "short answer",
        };
        let number = CreateEqOut::read_from_prefix(&output)
            .map_err(damaged)?
            .0
            .eq_number();
        if kind == EqKind::Completions {
            self.completion_eq = number;
        }
        let eq = ring.created(kind, number, page.clone(), vector);
        self.control.adopt_eq(eq);
        let mut destroy = DestroyEq::request();
        destroy.set_eq_number(number);
        self.stack.push(kind.name(), move |control, graveyard| {
            // Before the command EQ goes, commands must be polled for again.
            let memory = control.release_eq(number);
            if let Err(failure) = control.execute::<DestroyEq>(&destroy) {
                graveyard.bury(memory);
                return Err(failure.into());
            }
            Ok(())
        });
        Ok(())
    }

    /// Allocates a UAR page: its number and its registers.
    pub(crate) fn alloc_uar(&self) -> Result<(u32, Registers), Error> {
        let number = self
            .control
            .execute::<AllocUar>(&AllocUar::request())?
            .uar();
        let page = uar::PAGE as u64;
        match self.function.registers(u64::from(number) * page, page) {
            Ok(registers) => Ok((number, registers)),
            Err(error) => {
                let mut dealloc = DeallocUar::request();
                dealloc.set_uar(number)?;
                self.control.execute::<DeallocUar>(&dealloc)?;
                Err(error.into())
            }
        }
    }

    /// Something was made that the command `D` destroys when the function is taken down.
    pub(crate) fn keep<D: Command>(&mut self, what: &'static str, input: D::Input)
    where
        D::Input: Send,
    {
        self.stack.destroy::<D>(what, input);
    }

    /// Takes the function down. Idempotent.
    pub(crate) fn close(&mut self) -> Closed {
        self.close_after(false)
    }

    /// As [`close`](Self::close); `dirty` says that something above could not be undone.
    pub(crate) fn close_after(&mut self, dirty: bool) -> Closed {
        let mut closed = Closed::default();
        if std::mem::replace(&mut self.closed, true) {
            return closed;
        }
        self.control.closing();
        closed.errors = self.stack.unwind(&self.control, &mut self.graveyard);
        // From here on the device reaches no memory, whatever state it is in.
        let cut_off = self.function.set_bus_master(false);
        let alive = !self.graveyard.is_empty();
        // A command that was never answered may have been executed: firmware may hold an object or
        // pages that nobody here knows of, and pages must not be freed under it.
        let counts = self.control.shared().counts();
        let unanswered = counts.timeouts > counts.late_answers;
        let unclean = dirty || alive || unanswered || !closed.errors.is_empty() || cut_off.is_err();
        if unclean {
            closed.reset = true;
            if let Err(error) = self.function.reset() {
                closed.errors.push(error.into());
            }
        }
        if let Err(error) = cut_off {
            closed.errors.push(error.into());
        }
        closed.pages_kept = self.control.forget_pages();
        self.control.stop();
        if let Err(error) = self.function.disable_interrupts() {
            closed.errors.push(error.into());
        }
        self.graveyard.clear();
        closed
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let closed = self.close();
        if !closed.errors.is_empty() {
            tracing::warn!(?closed, "function closed");
        }
    }
}

/// Takes back what firmware holds; an error if it keeps any.
fn reclaim(name: &str, control: &Control, patience: Duration) -> Result<(), Error> {
    let Some(kept) = control.reclaim_pages(patience) else {
        return Err(CommandFailure::Closed {
            opcode: Opcode::MANAGE_PAGES,
        }
        .into());
    };
    if kept.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = kept
        .iter()
        .map(|(key, n)| format!("{n} with {key}"))
        .collect();
    Err(Error::PagesKept {
        function: name.into(),
        kept: kept.iter().map(|(_, n)| n).sum(),
        keys: keys.join(", "),
    })
}

fn silent(name: &str) -> Error {
    Error::Unsupported {
        function: name.into(),
        lacks: "does not answer (registers read as all ones)".into(),
        remedy: "look at dmesg and at its slot, or cold-boot the host",
    }
}

/// Waits until firmware has started, and says so while it waits.
fn wait_initialized(name: &str, segment: &InitSegment, patience: Duration) -> Result<(), Error> {
    let start = Instant::now();
    let mut next_word = FIRST_WORD;
    let mut answered = start;
    while segment.initializing()? {
        let now = Instant::now();
        let waited = now.saturating_duration_since(start);
        // All ones look like the bit too.
        if segment.answers() {
            answered = now;
        } else if now.saturating_duration_since(answered) >= SILENCE.min(patience) {
            return Err(silent(name));
        }
        if waited >= next_word {
            next_word += NEXT_WORD;
            tracing::warn!(
                "{name}: firmware still initializing after {} s, waiting {} s more",
                waited.as_secs(),
                patience.saturating_sub(waited).as_secs()
            );
        }
        if waited >= patience {
            let health = match health::before_start(segment)? {
                (_, Some(syndrome)) => format!(" (health syndrome {syndrome})"),
                _ => String::new(),
            };
            return Err(Error::Initializing {
                function: name.into(),
                waited,
                health,
            });
        }
        std::thread::sleep(INITIALIZING_LOOK);
    }
    Ok(())
}
