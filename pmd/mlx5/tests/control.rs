//! Commands, events, pages, health and link of a port against a device that is a script.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails loudly

mod firmware;

use firmware::{Firmware, Raise, Verdict};
use pollux_bus::{BusError, DmaDomain, Function, Identity, Interrupt, Registers};
use pollux_mempool::PageChoice;
use pollux_mlx5::{CommandFailure, Ending, Error, Fault, Link, OpenOptions, Port};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn options() -> OpenOptions {
    OpenOptions {
        command_deadline: Duration::from_secs(100),
        pages: PageChoice::Ordinary,
        ..OpenOptions::default()
    }
}

fn impatient() -> OpenOptions {
    OpenOptions {
        command_deadline: Duration::from_millis(500),
        ..options()
    }
}

fn open(firmware: &Arc<Firmware>) -> Port {
    Port::open(firmware.connect(), options()).unwrap()
}

/// Waits for something that happens on another thread; the limit only ends a broken test.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(100), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn no_faults(firmware: &Firmware) {
    let state = firmware.state.lock().unwrap();
    assert_eq!(state.objects.faults, [] as [String; 0]);
    assert_eq!(state.objects.count(), 0, "{:?}", state.objects.live);
    assert!(state.objects.pages.is_empty());
    assert!(!state.objects.enabled && !state.objects.started);
}

const MANAGE_PAGES: u16 = 0x108;
const QUERY_VPORT_COUNTER: u16 = 0x770;
const QUERY_Q_COUNTER: u16 = 0x773;

#[test]
fn bring_up_and_close_leave_nothing() {
    let firmware = Firmware::new();
    for _ in 0..2 {
        let port = open(&firmware);
        assert_eq!(firmware.state.lock().unwrap().objects.pages.len(), 606);
        assert_eq!(port.pages().held, 606);
        let report = port.close().unwrap();
        assert_eq!(
            (report.pages_given, report.pages_kept, report.reset),
            (606, 0, false)
        );
        assert_eq!(
            port.close().unwrap(),
            Default::default(),
            "again: nothing to do"
        );
        no_faults(&firmware);
        assert!(matches!(port.stats(), Err(Error::State { .. })));
    }
    assert_eq!(firmware.state.lock().unwrap().resets, 0);
}

#[test]
fn the_order_is_firmwares() {
    let firmware = Firmware::new();
    open(&firmware).close().unwrap();
    let opcodes = firmware.opcodes();
    let first: Vec<u16> = opcodes.iter().copied().take(14).collect();
    assert_eq!(
        first,
        [
            0x104, 0x10a, 0x10b, 0x107, 0x108, 0x805, 0x100, 0x100, 0x109, 0x107, 0x108, 0x102,
            0x100, 0x100
        ]
    );
    let last: Vec<u16> = opcodes.iter().rev().copied().take(3).collect();
    assert_eq!(last, [0x105, 0x108, 0x103]);
    let log = firmware.state.lock().unwrap().log.clone();
    for command in &log {
        let pages = command.opcode == MANAGE_PAGES;
        assert_eq!(
            pages,
            command.slot == 31,
            "the last slot is for pages alone: {command:?}"
        );
    }
}

#[test]
fn start_up_counts_may_be_zero_or_negative() {
    let cases = [
        ([0, 0], 0),
        ([-5, 10], 10),
        ([3, -1], 2),
        ([i32::MIN, 70_000], 70_000),
    ];
    for (startup, held) in cases {
        let firmware = Firmware::new();
        firmware.state.lock().unwrap().startup = startup;
        let port = open(&firmware);
        until("pages held", || port.pages().held == held);
        port.close().unwrap();
        no_faults(&firmware);
    }
}

#[test]
fn a_refused_command_says_what_and_why_and_unwinds() {
    let firmware = Firmware::new();
    let commands = {
        open(&firmware).close().unwrap();
        firmware.opcodes().len()
    };
    // Each single command of bring-up once, and a second try after it.
    for victim in 0..commands {
        let firmware = Firmware::new();
        let mut seen = 0;
        firmware.script(move |_| {
            seen += 1;
            if seen - 1 == victim {
                Verdict::Refuse(0x3, 0xabcd)
            } else {
                Verdict::Do
            }
        });
        match Port::open(firmware.connect(), options()) {
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("0xabcd") || text.contains("pages"),
                    "{victim}: {text}"
                );
            }
            // Past bring-up: the refusal met close, or a command that may fail.
            Ok(port) => drop(port.close()),
        }
        firmware.no_script();
        let port = open(&firmware);
        assert_eq!(
            port.pages().held,
            606,
            "second try after command {victim} failed"
        );
        port.close().unwrap();
        let state = firmware.state.lock().unwrap();
        assert_eq!(
            state.objects.count(),
            0,
            "command {victim}: {:?}",
            state.objects.live
        );
        assert!(state.objects.pages.is_empty(), "command {victim}");
    }
}

#[test]
fn a_lost_event_does_not_lose_the_command() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    firmware.script(|c| match c.opcode {
        QUERY_VPORT_COUNTER => Verdict::LoseEvent,
        _ => Verdict::Do,
    });
    port.stats().unwrap();
    assert!(port.events().lost_events >= 1);
    assert_eq!(port.events().timeouts, 0);
    firmware.no_script();
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn a_hanging_command_times_out_by_name_and_its_slot_stays_unused() {
    let firmware = Firmware::new();
    let port = Port::open(firmware.connect(), impatient()).unwrap();
    until("link known", || port.link().up == Some(true));
    firmware.script(|c| match c.opcode {
        QUERY_VPORT_COUNTER => Verdict::Hang,
        _ => Verdict::Do,
    });
    for slot in 0..8 {
        let error = port.stats().unwrap_err();
        let Error::Command(CommandFailure::TimedOut {
            slot: found,
            waited,
            ..
        }) = &error
        else {
            panic!("{error}");
        };
        assert_eq!(*found, slot);
        assert!(*waited >= Duration::from_millis(500));
        assert!(error.to_string().contains("QUERY_VPORT_COUNTER"), "{error}");
    }
    let error = port.stats().unwrap_err();
    assert!(
        matches!(error, Error::Command(CommandFailure::NoSlot { .. })),
        "{error}"
    );
    // The device does not obey: closing cuts it off and resets it.
    assert!(matches!(port.close(), Err(Error::Close { .. })));
    assert_eq!(firmware.state.lock().unwrap().resets, 1);
    drop(port);
    firmware.no_script();
    open(&firmware).close().unwrap();
    no_faults(&firmware);
}

/// Closing takes dozens of commands, and each has a deadline: only the first one is waited for.
#[test]
fn closing_a_silent_device_waits_for_one_command() {
    let firmware = Firmware::new();
    let port = Port::open(firmware.connect(), impatient()).unwrap();
    until("link known", || port.link().up == Some(true));
    firmware.script(|_| Verdict::Hang);
    let error = port.close().unwrap_err().to_string();
    assert!(error.contains("no answer"), "{error}");
    assert_eq!(port.events().timeouts, 1);
    assert_eq!(port.fault(), Some(Fault::Silent));
    assert_eq!(firmware.state.lock().unwrap().resets, 1);
    drop(port);
    firmware.no_script();
    open(&firmware).close().unwrap();
    no_faults(&firmware);
}

#[test]
fn a_late_answer_frees_its_slot() {
    let firmware = Firmware::new();
    let port = Port::open(firmware.connect(), impatient()).unwrap();
    firmware.script(|c| match (c.opcode, c.nth) {
        (QUERY_VPORT_COUNTER, 0..8) => Verdict::Hold,
        _ => Verdict::Do,
    });
    for _ in 0..8 {
        assert!(port.stats().is_err());
    }
    firmware.release();
    until("a slot comes free", || port.stats().is_ok());
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn answers_in_any_order_reach_their_callers() {
    let firmware = Firmware::new();
    let port = Arc::new(open(&firmware));
    let held = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&held);
    firmware.script(move |c| match c.opcode {
        // The first command of `stats`, each with a number of its own in the answer.
        QUERY_Q_COUNTER => {
            count.fetch_add(1, Ordering::SeqCst);
            Verdict::Hold
        }
        _ => Verdict::Do,
    });
    // `stats` holds the port's lock, `pages` does not go by commands: page requests and link
    // questions run beside the command that is held.
    let caller = std::thread::spawn({
        let port = Arc::clone(&port);
        move || port.stats().map(|_| ())
    });
    until("the command is held", || held.load(Ordering::SeqCst) == 1);
    firmware.raise(Raise::Pages {
        function: 0,
        flags: 0,
        count: 100,
    });
    until("pages are given meanwhile", || {
        firmware.state.lock().unwrap().objects.pages.len() == 706
    });
    firmware.release();
    caller.join().unwrap().unwrap();
    firmware.no_script();
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn delivery_errors_are_named() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    firmware.script(|c| match c.opcode {
        QUERY_Q_COUNTER => Verdict::Delivery(0x2),
        _ => Verdict::Do,
    });
    let error = port.stats().unwrap_err();
    assert!(error.to_string().contains("token error"), "{error}");
    firmware.no_script();
    port.close().unwrap();
}

#[test]
fn damaged_answers_are_noticed_when_signatures_are_asked_for() {
    for signed in [true, false] {
        let firmware = Firmware::new();
        let options = OpenOptions {
            command_signatures: signed,
            ..options()
        };
        let port = Port::open(firmware.connect(), options).unwrap();
        firmware.script(|c| match c.opcode {
            QUERY_VPORT_COUNTER => Verdict::WrongToken,
            _ => Verdict::Do,
        });
        match port.stats() {
            Err(Error::Command(CommandFailure::Damaged { .. })) => assert!(signed),
            Ok(_) => assert!(!signed),
            Err(other) => panic!("{other}"),
        }
        firmware.no_script();
        port.close().unwrap();
    }
}

#[test]
fn page_requests_are_met() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let held = |n: usize| {
        until("pages held", || {
            firmware.state.lock().unwrap().objects.pages.len() == n
        });
    };
    firmware.raise(Raise::Pages {
        function: 0,
        flags: 0,
        count: 60_000,
    });
    held(60_606);
    let gives: Vec<u32> = {
        let state = firmware.state.lock().unwrap();
        let gives = state
            .log
            .iter()
            .filter(|c| c.opcode == MANAGE_PAGES && c.op_mod == 1);
        gives.map(|c| c.word(12)).collect()
    };
    assert_eq!(gives, [6, 600, 50_000, 10_000], "in steps");
    firmware.raise(Raise::Pages {
        function: 0,
        flags: 0,
        count: -60_000,
    });
    held(606);
    until("ledger", || port.pages().held == 606);
    assert_eq!(port.pages().taken, 60_000);
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn release_all_sends_no_command() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    firmware.raise(Raise::Pages {
        function: 3,
        flags: 0,
        count: 50,
    });
    until("given", || port.pages().held == 656);
    let before = firmware.opcodes().len();
    firmware.raise(Raise::Pages {
        function: 3,
        flags: 0x4000,
        count: 0,
    });
    until("released", || port.pages().held == 606);
    assert_eq!(port.pages().released, 50);
    assert_eq!(firmware.opcodes().len(), before);
    // The device has dropped them without being asked.
    {
        let mut state = firmware.state.lock().unwrap();
        let give = state
            .log
            .iter()
            .find(|c| c.opcode == MANAGE_PAGES && c.word(8) == 3);
        let pages: Vec<u64> = give.unwrap().input[16..]
            .chunks_exact(8)
            .map(|page| u64::from_be_bytes(page.try_into().unwrap()))
            .collect();
        assert_eq!(pages.len(), 50);
        pages
            .iter()
            .for_each(|page| assert!(state.objects.pages.remove(page)));
    }
    port.close().unwrap();
}

#[test]
fn a_liar_about_returned_pages_frees_none() {
    let firmware = Firmware::new();
    let port = Port::open(firmware.connect(), impatient()).unwrap();
    firmware.script(|c| match (c.opcode, c.op_mod) {
        (MANAGE_PAGES, 2) => {
            let mut answer = vec![0; 16];
            answer[8..12].copy_from_slice(&(c.word(12) + 1).to_be_bytes());
            Verdict::Answer(answer)
        }
        _ => Verdict::Do,
    });
    firmware.raise(Raise::Pages {
        function: 0,
        flags: 0,
        count: -10,
    });
    until("the request was tried", || {
        let state = firmware.state.lock().unwrap();
        state
            .log
            .iter()
            .any(|c| c.opcode == MANAGE_PAGES && c.op_mod == 2)
    });
    assert_eq!(port.pages().held, 606);
    firmware.no_script();
    // The liar has forgotten ten pages, which it therefore does not return.
    let error = port.close().unwrap_err().to_string();
    assert!(error.contains("keeps 10"), "{error}");
}

#[test]
fn an_event_queue_never_overruns() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    until("link known", || port.link().up == Some(true));
    let before = port.events().unknown_events;
    // Several times what the ring holds, with the driver reading beside it. Each event counts
    // only once it was read, so no lap can be skipped.
    for lap in 1..=20 {
        firmware.raise(Raise::Many(0x16, [0; 28], 100));
        until("read", || {
            port.events().unknown_events >= before + lap * 100
        });
    }
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn lost_interrupts_only_cost_time() {
    let firmware = Firmware::new();
    firmware.state.lock().unwrap().deaf = true;
    let port = open(&firmware);
    port.stats().unwrap();
    assert_eq!(port.events().interrupts, 0);
    assert!(port.events().events > 0, "queues are read all the same");
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn an_interrupt_without_event_is_harmless() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    for vector in 0..firmware::VECTORS {
        firmware.ring_vector(vector);
    }
    until("taken", || {
        port.events().interrupts >= firmware::VECTORS as u64
    });
    port.stats().unwrap();
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn a_device_that_is_gone_fails_everybody_fast() {
    let firmware = Firmware::new();
    let port = Arc::new(open(&firmware));
    until("link known", || port.link().up == Some(true));
    firmware.script(|c| match c.opcode {
        QUERY_Q_COUNTER => Verdict::Hang,
        _ => Verdict::Do,
    });
    let (tell, told) = channel();
    let caller = std::thread::spawn({
        let port = Arc::clone(&port);
        move || tell.send(port.stats().map(|_| ())).unwrap()
    });
    until("in flight", || {
        firmware.opcodes().last() == Some(&QUERY_Q_COUNTER)
    });
    firmware.state.lock().unwrap().gone = true;
    // The deadline is 20 s: whoever waits is told long before.
    let result = told.recv_timeout(Duration::from_secs(100)).unwrap();
    caller.join().unwrap();
    let Err(Error::Command(CommandFailure::Gone { fault, .. })) = result else {
        panic!("{result:?}");
    };
    assert_eq!(fault, Fault::NotAnswering);
    assert_eq!(port.fault(), Some(Fault::NotAnswering));
    assert_eq!(port.link().up, None);
    assert!(port.stats().unwrap_err().to_string().contains("gone"));
    let error = port.close().unwrap_err();
    assert!(matches!(error, Error::Close { .. }));
}

#[test]
fn a_firmware_that_stops_is_noticed() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    {
        let mut state = firmware.state.lock().unwrap();
        state.registers.insert(0x200 + 0x38, 1 << 31); // reset is required
        state.registers.insert(0x200 + 0x3c, 0x0001_1234); // syndrome, extended
    }
    until("noticed", || port.fault().is_some());
    let fault = port.fault().unwrap();
    assert!(
        matches!(
            fault,
            Fault::Firmware {
                extended: 0x1234,
                ..
            }
        ),
        "{fault}"
    );
    assert!(port.close().is_err());
}

#[test]
fn link_changes_are_told_once_each_and_late_states_are_awaited() {
    let firmware = Firmware::new();
    firmware.state.lock().unwrap().link_up = false;
    let port = open(&firmware);
    let (tell, told) = channel();
    port.on_link_change(move |link| tell.send(link).unwrap())
        .unwrap();
    let next = || told.recv_timeout(Duration::from_secs(100)).unwrap();
    assert_eq!(next(), Link::DOWN);
    // The event comes before the state can be read.
    let asked = firmware.opcodes().iter().filter(|o| **o == 0x750).count();
    firmware.raise(Raise::Port(4));
    until("asked", || {
        firmware.opcodes().iter().filter(|o| **o == 0x750).count() > asked
    });
    firmware.state.lock().unwrap().link_up = true;
    assert_eq!(next(), Link::up(25_000));
    firmware.raise(Raise::Port(4));
    firmware.state.lock().unwrap().link_up = false;
    firmware.raise(Raise::Port(1));
    assert_eq!(next(), Link::DOWN);
    port.close().unwrap();
    assert!(told.try_recv().is_err(), "nothing else was told");
}

#[test]
fn a_callback_that_calls_its_port_is_refused() {
    let firmware = Firmware::new();
    let port = Arc::new(open(&firmware));
    let (tell, told) = channel();
    let weak = Arc::downgrade(&port);
    port.on_link_change(move |_| {
        let Some(port) = weak.upgrade() else { return };
        // What needs a command is refused, what does not is answered.
        tell.send((port.stats().map(drop), port.pages().held))
            .unwrap();
    })
    .unwrap();
    firmware.state.lock().unwrap().link_up = false;
    firmware.raise(Raise::Port(1));
    let (result, held) = told.recv_timeout(Duration::from_secs(100)).unwrap();
    // On the control thread, or at once on ours if the link was known already.
    let refused = matches!(
        &result,
        Err(Error::State {
            state: "calling back",
            ..
        })
    );
    assert!(refused || result.is_ok(), "{result:?}");
    assert!(held == 0 || held == 606);
    port.close().unwrap();
    no_faults(&firmware);
}

#[test]
fn another_interface_revision_is_refused() {
    let firmware = Firmware::new();
    firmware
        .state
        .lock()
        .unwrap()
        .registers
        .insert(0x04, 6 << 16);
    let error = Port::open(firmware.connect(), options()).unwrap_err();
    assert!(
        matches!(error, Error::Interface { found: 6, .. }),
        "{error}"
    );
    for geometry in [0x58, 0x65, 0x06, 0x55, 0xff] {
        firmware
            .state
            .lock()
            .unwrap()
            .registers
            .insert(0x04, 5 << 16);
        firmware
            .state
            .lock()
            .unwrap()
            .registers
            .insert(0x14, geometry);
        let error = Port::open(firmware.connect(), options()).unwrap_err();
        assert!(
            matches!(error, Error::CommandQueue { .. }),
            "{geometry:#x}: {error}"
        );
    }
}

#[test]
fn firmware_that_keeps_initializing_is_given_up() {
    let firmware = Firmware::new();
    firmware
        .state
        .lock()
        .unwrap()
        .registers
        .insert(0x1fc, 1 << 31);
    let options = OpenOptions {
        init_deadline: Duration::from_millis(20),
        ..options()
    };
    let error = Port::open(firmware.connect(), options).unwrap_err();
    assert!(matches!(error, Error::Initializing { .. }), "{error}");
}

/// A function whose interrupt descriptors hang up, and which the platform may want back.
struct Fickle {
    function: Arc<dyn Function>,
    /// The other ends of the descriptors; dropping them is the hang-up.
    ends: Mutex<Vec<OwnedFd>>,
    removal: Interrupt,
}

impl Fickle {
    fn new(firmware: &Arc<Firmware>) -> Arc<Self> {
        Arc::new(Self {
            function: firmware.connect(),
            ends: Mutex::default(),
            removal: Interrupt::new().unwrap(),
        })
    }
}

impl Function for Fickle {
    fn identity(&self) -> &Identity {
        self.function.identity()
    }

    fn register_size(&self) -> u64 {
        self.function.register_size()
    }

    fn registers(&self, offset: u64, len: u64) -> Result<Registers, BusError> {
        self.function.registers(offset, len)
    }

    fn domain(&self) -> &Arc<DmaDomain> {
        self.function.domain()
    }

    fn vectors(&self) -> usize {
        self.function.vectors()
    }

    fn enable_interrupts(&self, count: usize) -> Result<Vec<Interrupt>, BusError> {
        let mut ends = self.ends.lock().unwrap();
        let pipe = |_| {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            ends.push(theirs.into());
            Interrupt::from_any(ours.into())
        };
        (0..count).map(pipe).collect()
    }

    fn disable_interrupts(&self) -> Result<(), BusError> {
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        self.function.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), BusError> {
        self.function.reset()
    }

    fn removal(&self) -> Option<Interrupt> {
        Some(self.removal.clone())
    }
}

#[test]
fn a_function_that_is_wanted_back_is_told_and_still_works() {
    let firmware = Firmware::new();
    let function = Fickle::new(&firmware);
    let port = Port::open(Arc::clone(&function) as Arc<_>, options()).unwrap();
    let watch = port.watch();
    assert_eq!(watch.ending(), None);
    function.removal.raise();
    // Told to whoever looks, as often as he looks.
    assert_eq!(watch.ending(), Some(Ending::WantedBack));
    assert_eq!(port.watch().ending(), Some(Ending::WantedBack));
    port.stats().unwrap();
    let closed = port.close().unwrap();
    assert_eq!((closed.pages_kept, closed.reset), (0, false));
    no_faults(&firmware);
}

#[test]
fn descriptors_that_hang_up_are_dropped_and_told() {
    let firmware = Firmware::new();
    let function = Fickle::new(&firmware);
    let port = Port::open(Arc::clone(&function) as Arc<_>, options()).unwrap();
    assert_eq!(port.events().lost_interrupts, 0);
    function.ends.lock().unwrap().clear();
    // The driver has a use for three.
    until("dropped", || port.events().lost_interrupts == 3);
    // Each is dropped once, and work goes on by the clock.
    port.stats().unwrap();
    firmware.raise(Raise::Pages {
        function: 0,
        flags: 0,
        count: 10,
    });
    until("pages", || port.pages().held == 616);
    assert_eq!(port.events().lost_interrupts, 3);
    port.close().unwrap();
    no_faults(&firmware);
}
