//! One emulated function: its register region, and the thread that plays its firmware.
//!
//! The region is an initialization segment, a trapped UAR page for the control plane, and mapped
//! UAR pages that the data thread watches. Stores to trapped registers are noted in an inbox; the
//! command thread, which lives from a driver's arrival to its departure, does the work.

use crate::command_queue::{CommandQueue, QueueCounts};
use crate::data::{DataError, DataEvent, DataPort, QueueFault};
use crate::events::{self, Event};
use crate::faults::{Faults, PageDemand, PageOwner};
use crate::firmware::{Character, Firmware};
use crate::init_segment::{Asked, InitSegment};
use crate::objects::Kind;
use crate::observe::Watched;
use crate::storm::Storm;
use pollux_bus::vfio::EMULATED_SUBSYSTEM;
use pollux_bus::{Device, FaultLog, Host, HostReader, Identity, Iova, MappedWindow, PciIdentity};
use pollux_mempool::Window;
use pollux_prm::command_queue::registers;
use pollux_prm::wqe::uar;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes of a UAR page.
pub(crate) const UAR_PAGE: u64 = uar::PAGE as u64;
/// The first page that ALLOC_UAR hands out; those below are the initialization segment and space
/// for an interrupt table.
pub(crate) const FIRST_UAR: u32 = 0x10;
/// The first page that is mapped memory.
pub(crate) const FIRST_MAPPED_UAR: u32 = FIRST_UAR + 1;
/// One past the last page.
pub(crate) const END_UAR: u32 = 0x100;
/// Size of the register region in bytes.
pub(crate) const REGION: u64 = END_UAR as u64 * UAR_PAGE;

/// Vendor id of Mellanox.
pub(crate) const VENDOR: u16 = 0x15b3;

/// What the command thread has to do.
#[derive(Debug)]
struct Work {
    doorbell: u32,
    /// The command queue's address changed.
    queue: Option<Option<u64>>,
    /// EQ doorbells: the value, and whether it arms.
    eqs: Vec<(u32, bool)>,
    data: Vec<DataEvent>,
    reset: bool,
    /// Faults changed.
    poke: bool,
    stop: bool,
}

/// Doorbells and events that fit without another allocation: far more than come while the command
/// thread does one command.
const ROOM: usize = 1024;

impl Default for Work {
    fn default() -> Self {
        Self {
            doorbell: 0,
            queue: None,
            eqs: Vec::with_capacity(ROOM),
            data: Vec::with_capacity(ROOM),
            reset: false,
            poke: false,
            stop: false,
        }
    }
}

impl Work {
    /// Forgets all of it and keeps the room.
    fn clear(&mut self) {
        self.eqs.clear();
        self.data.clear();
        self.doorbell = 0;
        self.queue = None;
        (self.reset, self.poke, self.stop) = (false, false, false);
    }

    fn is_empty(&self) -> bool {
        self.doorbell == 0
            && self.queue.is_none()
            && self.eqs.is_empty()
            && self.data.is_empty()
            && !(self.reset || self.poke || self.stop)
    }
}

/// How work reaches the command thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    work: Mutex<Work>,
    wake: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, note: impl FnOnce(&mut Work)) {
        note(&mut self.lock());
        self.wake.notify_one();
    }

    /// An event of the data side.
    pub(crate) fn data_event(&self, event: DataEvent) {
        self.post(|work| work.data.push(event));
    }

    /// Faults changed.
    pub(crate) fn poke(&self) {
        self.post(|work| work.poke = true);
    }

    /// Takes all work in exchange for `done`, whose lists keep their room, so that whoever stores
    /// into a register allocates nothing; sleeps while there is none, at most until `due`.
    fn take(&self, due: Option<Instant>, reader: &mut HostReader, done: &mut Work) {
        done.clear();
        let mut work = self.lock();
        if !work.is_empty() {
            std::mem::swap(&mut *work, done);
            return;
        }
        // Nobody who unmaps memory shall wait for a sleeper.
        reader.park();
        while work.is_empty() {
            work = match due.map(|due| due.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let waited = self.wake.wait_timeout(work, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(work).unwrap_or_else(PoisonError::into_inner),
            };
        }
        std::mem::swap(&mut *work, done);
        drop(work);
        reader.unpark();
    }
}

/// What a function did for its driver. After the driver left, the report stays what it was when it
/// left, until another one comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionReport {
    /// A driver is connected.
    pub connected: bool,
    /// Pages of the driver that the firmware holds.
    pub firmware_pages: usize,
    /// The same by function, those with none left out.
    pub pages_by_function: BTreeMap<PageOwner, u64>,
    /// Numbers of the live objects by kind, as commands have them; those of flow groups and entries
    /// have their table's in the upper half.
    pub objects: BTreeMap<Kind, Vec<u64>>,
    /// Commands executed, refused ones included.
    pub commands: u64,
    /// Commands refused.
    pub refused: u64,
    /// Command entries that were malformed.
    pub undelivered: u64,
    /// A command waits for pages.
    pub holding: bool,
    /// Commands that wait for their time, to be executed or answered.
    pub late: usize,
    /// Command doorbells for slots that were busy, absent or not the device's.
    pub stray_doorbells: u64,
    /// Events written.
    pub events: u64,
    /// Events lost: no queue, a full queue, memory out of reach.
    pub events_lost: u64,
    /// Faults met since the emulator was made.
    pub faults: u64,
    /// Accesses to memory that the IOMMU refused since the driver arrived, and the last one's
    /// address.
    pub dma_faults: u64,
    /// See there.
    pub last_dma_fault: Option<Iova>,
}

impl FunctionReport {
    /// Live objects of all kinds.
    pub fn live_objects(&self) -> usize {
        self.objects.values().map(Vec::len).sum()
    }

    /// Numbers of the live objects of one kind.
    pub fn numbers(&self, kind: Kind) -> &[u64] {
        self.objects.get(&kind).map_or(&[], Vec::as_slice)
    }
}

pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) character: Character,
    pub(crate) data: DataPort,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) segment: Arc<InitSegment>,
    pub(crate) watched: Watched,
    report: Mutex<FunctionReport>,
    /// Of the driver that is connected, or was last.
    refused: Mutex<Arc<FaultLog>>,
    /// Upper halves of 64-bit doorbells that come in two stores.
    halves: [AtomicU64; 2],
}

impl Shared {
    pub(crate) fn new(
        identity: Identity,
        character: Character,
        data: DataPort,
        inbox: Arc<Inbox>,
        segment: Arc<InitSegment>,
    ) -> Self {
        Self {
            identity,
            character,
            data,
            inbox,
            faults: Arc::default(),
            segment,
            watched: Watched::default(),
            report: Mutex::default(),
            refused: Mutex::default(),
            halves: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(crate) fn report(&self) -> FunctionReport {
        let mut report = self.lock_report().clone();
        report.faults = self.faults.met();
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        report.dma_faults = refused.count();
        report.last_dma_fault = refused.last();
        report
    }

    /// Notes that the data thread is gone: it touches nothing any more and has forgotten all.
    fn data_gone(&self, what: &str, result: Result<(), DataError>) {
        if let Err(why) = result {
            tracing::warn!(function = %self.identity.name, %why, "{what}");
        }
    }

    fn lock_report(&self) -> MutexGuard<'_, FunctionReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One emulated function, as a backing sees it.
pub(crate) struct EmulatedFunction {
    pub(crate) shared: Arc<Shared>,
    uars: Window,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmulatedFunction {
    pub(crate) fn new(shared: Arc<Shared>, uars: Window) -> Self {
        Self {
            shared,
            uars,
            thread: Mutex::new(None),
        }
    }

    fn store_word(&self, offset: u64, value: u32) {
        let shared = &self.shared;
        if offset < FIRST_UAR as u64 * UAR_PAGE {
            match shared.segment.store(offset as usize, value) {
                Asked::Nothing => {}
                Asked::Queue(address) => shared.inbox.post(|work| work.queue = Some(Some(address))),
                Asked::Close => shared.inbox.post(|work| work.queue = Some(None)),
                Asked::Doorbell(bits) => shared.inbox.post(|work| work.doorbell |= bits),
                Asked::Reset => self.reset(),
            }
            return;
        }
        let (page, at) = ((offset / UAR_PAGE) as u32, (offset % UAR_PAGE) as usize);
        match at {
            uar::EQ_ARM | uar::EQ_CONSUMER => {
                let arm = at == uar::EQ_ARM;
                shared.inbox.post(|work| work.eqs.push((value, arm)));
            }
            // A 64-bit doorbell in two stores, upper half first.
            _ => {
                let half = shared.halves.get(usize::from(at >= uar::SEND));
                let Some(half) = half else { return };
                if at % 8 == 0 {
                    half.store(u64::from(value) << 32, Ordering::Release);
                } else {
                    let whole = half.load(Ordering::Acquire) | u64::from(value);
                    shared.data.ring(page, at as u32 - 4, whole);
                }
            }
        }
    }
}

impl Device for EmulatedFunction {
    fn identity(&self) -> Identity {
        self.shared.identity.clone()
    }

    fn pci(&self) -> PciIdentity {
        let character = &self.shared.character;
        let profile = &character.profile;
        let [a, b, c, d, e, f] = character.mac;
        let serial = character.mac.map(|byte| format!("{byte:02X}")).concat();
        PciIdentity {
            subsystem_vendor: EMULATED_SUBSYSTEM.0,
            subsystem: EMULATED_SUBSYSTEM.1,
            link_speed: profile.pcie_speed,
            link_width: profile.pcie_lanes,
            serial: Some(u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f])),
            product: format!("Pollux emulated {}", profile.name),
            vital: vec![(*b"PN", profile.psid.clone()), (*b"SN", serial)],
            ..PciIdentity::default()
        }
    }

    fn register_size(&self) -> u64 {
        REGION
    }

    fn mapped_windows(&self) -> Vec<MappedWindow> {
        let offset = u64::from(FIRST_MAPPED_UAR) * UAR_PAGE;
        vec![MappedWindow {
            offset,
            memory: self.uars.clone(),
        }]
    }

    fn vectors(&self) -> usize {
        self.shared.character.vectors
    }

    fn connect(&self, host: Host) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() || self.shared.data.connect(Arc::clone(&host.memory)).is_err() {
            return false;
        }
        *self.shared.inbox.lock() = Work::default();
        *self
            .shared
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = host.memory.faults();
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new()
            .name(format!("{} commands", self.shared.identity.name))
            .spawn(move || run(&shared, &host));
        match started {
            Ok(handle) => {
                *thread = Some(handle);
                true
            }
            Err(why) => {
                tracing::error!(%why, "no thread for the emulated function's commands");
                self.shared
                    .data_gone("disconnect", self.shared.data.disconnect());
                false
            }
        }
    }

    fn disconnect(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = thread.take() {
            self.shared.inbox.post(|work| work.stop = true);
            if handle.join().is_err() {
                tracing::error!("the emulated function's command thread panicked");
            }
            self.shared
                .data_gone("disconnect", self.shared.data.disconnect());
        }
        self.shared.segment.forget();
        self.shared.lock_report().connected = false;
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) {
        if self.shared.faults.killed() {
            return bytes.fill(0xff);
        }
        for (at, byte) in (offset..).zip(bytes) {
            let word = self.shared.segment.load((at & !3) as usize).to_be_bytes();
            let inside = at < registers::END as u64;
            *byte = word
                .get((at & 3) as usize)
                .copied()
                .filter(|_| inside)
                .unwrap_or(0);
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        // Registers are 32 bits wide; narrower stores are dropped.
        let fits = offset % 4 == 0 && bytes.len() % 4 == 0;
        if !fits || self.shared.faults.killed() {
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(bytes.chunks_exact(4)) {
            let value = word
                .iter()
                .fold(0, |value, byte| value << 8 | u32::from(*byte));
            self.store_word(at, value);
        }
    }

    fn reset(&self) {
        self.shared.segment.reset();
        self.shared.inbox.post(|work| {
            let stop = work.stop;
            work.clear();
            (work.reset, work.stop) = (true, stop);
        });
    }
}

impl Drop for EmulatedFunction {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// The command thread.
fn run(shared: &Shared, host: &Host) {
    let mut player = Player {
        shared,
        host,
        reader: host.memory.reader(),
        firmware: Firmware::new(shared.character.clone(), shared.data.clone()),
        queue: None,
        counts: QueueCounts::default(),
        written: 0,
        lost: 0,
        listed: None,
        storm: Storm::new(&shared.character.storm),
        demands: VecDeque::new(),
    };
    player.report(&mut shared.lock_report());
    let mut work = Work::default();
    loop {
        let answer = player.queue.as_ref().and_then(CommandQueue::next_due);
        let due = answer.into_iter().chain(player.storm.next()).min();
        shared.inbox.take(due, &mut player.reader, &mut work);
        player.reader.quiesce();
        if work.stop {
            break;
        }
        // Whoever sees an answer of this step, and then asks for the report, waits for its end.
        let mut report = shared.lock_report();
        player.step(&mut work);
        player.report(&mut report);
    }
}

/// The command thread's state.
struct Player<'a> {
    shared: &'a Shared,
    host: &'a Host,
    reader: HostReader,
    firmware: Firmware,
    queue: Option<CommandQueue>,
    /// Counts of the queues before.
    counts: QueueCounts,
    written: u64,
    lost: u64,
    /// Changes of the objects when the report listed them last.
    listed: Option<u64>,
    storm: Storm,
    /// What the firmware is about to raise.
    demands: VecDeque<(PageOwner, PageDemand)>,
}

impl Player<'_> {
    /// Counts of all queues since the driver came.
    fn counts(&self) -> QueueCounts {
        self.queue
            .as_ref()
            .map_or(self.counts, |queue| queue.counts)
    }

    fn step(&mut self, work: &mut Work) {
        if work.reset {
            let shared = self.shared;
            shared.data_gone("reset", shared.data.reset());
            let refused = self.firmware.refused;
            self.firmware = Firmware::new(shared.character.clone(), shared.data.clone());
            self.firmware.refused = refused;
            self.listed = None;
            self.counts = self.counts();
            self.queue = None;
            self.demands.clear();
        }
        // Stored before the function was killed; a dead one takes no stores.
        if let Some(address) = work.queue {
            self.counts = self.counts();
            self.queue = address.map(|address| CommandQueue::new(address, self.counts));
        }
        if self.shared.faults.killed() {
            return;
        }
        for (value, arm) in work.eqs.drain(..) {
            events::doorbell(&mut self.firmware, value, arm, &self.host.interrupts);
        }
        for event in work.data.drain(..) {
            self.data_event(event);
        }
        let (manners, lies) = self.shared.faults.manners();
        self.firmware.manners = manners;
        self.firmware.module = self.shared.faults.module();
        self.firmware.lies.extend(lies);
        self.demands.extend(self.shared.faults.demands());
        if let Some(waves) = self.shared.faults.storm() {
            self.storm = Storm::once(&waves);
        }
        let storm = self.storm.due(self.firmware.is_running(), Instant::now());
        self.demands.extend(storm);
        self.raise_demands();
        let reported = events::reports_commands(&self.firmware);
        if let Some(queue) = &mut self.queue {
            let (firmware, reader) = (&mut self.firmware, &mut self.reader);
            queue.keep_records(self.shared.watched.is_there());
            queue.ring(work.doorbell, firmware, reader, &self.shared.faults);
            if self.shared.faults.killed() {
                // It died of a command: as if it had been killed.
                let cut = self.shared.data.set_wire(false);
                return self.shared.data_gone("death", cut);
            }
            let pages = std::mem::take(&mut firmware.pages.news);
            queue.advance(pages, Instant::now(), firmware, reader);
            self.shared.watched.tell(&queue.take_records());
            let vector = queue.take_completed();
            if vector != 0 && reported && events::reports_commands(firmware) {
                firmware.events.push(Event::Command { vector });
            }
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        let lines = &self.host.interrupts;
        let done = events::deliver(&mut self.firmware, &mut self.reader, lines);
        self.written += done.written;
        self.lost += done.lost;
    }

    fn data_event(&mut self, event: DataEvent) {
        let memory = |cause| matches!(cause, QueueFault::Memory { .. });
        let event = match event {
            DataEvent::Completion { cqn } => Event::Completion { cqn },
            DataEvent::CqError { cqn, syndrome } => Event::CqError { cqn, syndrome },
            DataEvent::SqError { sqn, cause } => Event::QueueError {
                send: true,
                number: sqn,
                access: memory(cause),
            },
            DataEvent::RqError { rqn, cause } => Event::QueueError {
                send: false,
                number: rqn,
                access: memory(cause),
            },
            DataEvent::EqDoorbell { offset, value, .. } => {
                let arm = offset as usize == uar::EQ_ARM;
                let lines = &self.host.interrupts;
                return events::doorbell(&mut self.firmware, value, arm, lines);
            }
            DataEvent::Link { .. } => return self.firmware.link_changed(),
        };
        self.firmware.events.push(event);
    }

    /// Raises what is to be raised. Pages are dropped only when the event that says so can be
    /// written at once: one that waits for room would be read after the answers to commands that
    /// came later, as if those pages were dropped too.
    fn raise_demands(&mut self) {
        while let Some((owner, demand)) = self.demands.pop_front() {
            if demand == PageDemand::ReleaseAll && self.firmware.may_release_all() {
                self.deliver();
                if !events::takes_requests(&self.firmware) {
                    self.demands.push_front((owner, demand));
                    return;
                }
            }
            if !self.firmware.raise_demand(owner, demand) {
                tracing::debug!("release of all pages not raised: the driver did not allow it");
            }
        }
    }

    fn report(&mut self, report: &mut FunctionReport) {
        let counts = self.counts();
        let holding = self.queue.as_ref().is_some_and(CommandQueue::holds);
        // Listing all objects after each command would make filling a table quadratic.
        let changes = self.firmware.objects.changes();
        let objects = (self.listed != Some(changes)).then(|| self.firmware.objects.by_kind());
        self.listed = Some(changes);
        let before = std::mem::take(&mut report.objects);
        *report = FunctionReport {
            connected: true,
            firmware_pages: self.firmware.pages.held(),
            pages_by_function: self.firmware.pages.by_function(),
            objects: objects.unwrap_or(before),
            commands: counts.executed,
            refused: self.firmware.refused,
            undelivered: counts.undelivered,
            holding,
            late: self.queue.as_ref().map_or(0, CommandQueue::late),
            stray_doorbells: counts.stray,
            events: self.written,
            events_lost: self.lost,
            faults: 0,
            dma_faults: 0,
            last_dma_fault: None,
        };
    }
}
