//! Faults at every step of the control plane: refused, delayed, unanswered and undelivered
//! commands, lost events, devices and processes that die.

use crate::harness::{Backing, Rig, one_queue, pool, until};
use crate::on_every_backing;
use pollux_mlx5::{CommandFailure, Error, Fault, OpenOptions, Port};
use std::time::Duration;

on_every_backing! {
    a_refused_command_of_bring_up_leaves_nothing
    an_undelivered_command_of_bring_up_leaves_nothing
    an_unanswered_command_of_bring_up_leaves_nothing
    a_refused_command_of_start_leaves_the_port_as_it_was
    a_refused_command_of_stop_and_close_still_gives_all_back
    the_same_bad_start_fails_the_same_way_twice
    late_answers_cost_time_only
    lost_events_cost_time_only
    an_unanswered_command_is_a_time_out_and_close_resets
    a_device_that_answers_no_command_is_closed_after_one_deadline
    a_dead_device_is_noticed_and_closed
    a_device_that_dies_during_bring_up_leaves_nothing
    a_refused_setting_changes_nothing
}

const STATUS: u8 = 0x5;
const SYNDROME: u32 = 0x00ab_cdef;

/// The message must name command, status and syndrome.
fn assert_names_the_fault(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    assert!(text.contains("0x5") && text.contains("0xabcdef"), "{text}");
    assert!(text.contains("(0x"), "the opcode: {text}");
    assert!(!text.contains('\n'), "{text}");
}

fn a_refused_command_of_bring_up_leaves_nothing(backing: Backing) {
    each_command_of_bring_up(backing, &format!("fail:{STATUS}:{SYNDROME}"), |error| {
        assert_names_the_fault(error);
    });
}

fn an_undelivered_command_of_bring_up_leaves_nothing(backing: Backing) {
    // 0x1: signature error.
    each_command_of_bring_up(backing, "undelivered:0x1", |error| {
        let text = error.to_string();
        assert!(text.contains("signature error"), "{text}");
    });
}

/// Each one costs a deadline, so the backings share the commands among them.
fn an_unanswered_command_of_bring_up_leaves_nothing(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let mut failed = 0;
    let first = 1 + (backing as usize % Backing::COUNT) as u64;
    for nth in (first..).step_by(Backing::COUNT) {
        assert!(nth < 500, "bring-up has no end");
        let function = rig.connect(0).unwrap();
        rig.ask(&format!("arm 0 nth:{nth} drop-answer"));
        let options = OpenOptions {
            command_deadline: Duration::from_millis(500),
            ..OpenOptions::default()
        };
        let opened = Port::open(function.clone(), options);
        let met = rig.ask("armed 0") == "0";
        rig.ask("disarm 0");
        let tolerated = opened.is_ok();
        match opened {
            Err(error) => {
                // On a busy machine another command may be late before.
                let late = matches!(&error, Error::Command(CommandFailure::TimedOut { .. }));
                assert!(late, "command {nth}: {error}");
                failed += 1;
            }
            // The driver may hear of the reset that makes up for what it does not know.
            Ok(port) => drop(port.close()),
        }
        assert_eq!(function.domain().mappings(), 0, "command {nth}");
        drop(function);
        assert_nothing_left(&rig, nth);
        if tolerated && !met {
            break;
        }
        // The second try.
        let closed = rig.open(0).unwrap().close().unwrap();
        let kept = (closed.pages_kept, closed.reset);
        assert_eq!(kept, (0, false), "after command {nth}");
    }
    let share = 20 / Backing::COUNT;
    assert!(
        failed >= share,
        "only {failed} commands of bring-up could fail"
    );
}

/// No page, object or driver is left after the fault at command `nth`.
fn assert_nothing_left(rig: &Rig, nth: u64) {
    let report = rig.report(0);
    let left = ["connected", "pages", "objects"].map(|key| report.get(key));
    assert_eq!(left, [0; 3], "command {nth}: {report}");
}

/// Lets the first, the second, ... command of bring-up meet a fault, until one is behind the last.
fn each_command_of_bring_up(backing: Backing, fault: &str, check: impl Fn(&Error)) {
    let rig = Rig::new(backing, "wire=loop");
    let mut failed = 0;
    for nth in (1..).step_by(backing.stride()) {
        assert!(nth < 500, "bring-up has no end");
        let function = rig.connect(0).unwrap();
        rig.ask(&format!("arm 0 nth:{nth} {fault}"));
        let opened = Port::open(function.clone(), OpenOptions::default());
        let met = rig.ask("armed 0") == "0";
        rig.ask("disarm 0");
        match opened {
            Err(error) => {
                assert!(met, "command {nth} was not there, and yet: {error}");
                check(&error);
                failed += 1;
                assert_eq!(function.domain().mappings(), 0, "command {nth}: {error}");
            }
            // Some commands may fail without harm; those that may not end bring-up.
            Ok(port) => {
                port.close().unwrap();
                assert_eq!(function.domain().mappings(), 0);
                drop((port, function));
                assert_nothing_left(&rig, nth);
                if met {
                    continue;
                }
                break;
            }
        }
        drop(function);
        assert_nothing_left(&rig, nth);
        // The second try.
        let port = rig.open(0).unwrap();
        let closed = port.close().unwrap();
        assert_eq!(
            (closed.pages_kept, closed.reset),
            (0, false),
            "after command {nth}"
        );
    }
    assert!(
        failed > 20 / backing.stride(),
        "only {failed} commands of bring-up could fail"
    );
}

fn a_refused_command_of_start_leaves_the_port_as_it_was(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let function = rig.connect(0).unwrap();
    let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
    let pool = pool(512);
    let idle = rig.report(0).get("objects");
    let mut failed = 0;
    for nth in 1.. {
        assert!(nth < 500, "start has no end");
        rig.ask(&format!("arm 0 nth:{nth} fail:{STATUS}:{SYNDROME}"));
        let started = port.start(&one_queue(&pool, 64));
        let met = rig.ask("armed 0") == "0";
        rig.ask("disarm 0");
        let Err(error) = started else {
            if met {
                port.stop().unwrap();
                continue;
            }
            break;
        };
        assert_names_the_fault(&error);
        failed += 1;
        assert!(!port.is_started());
        assert!(port.take_rx(0).is_err() && port.take_tx(0).is_err());
        assert_eq!(pool.in_use(), 0, "command {nth}: {error}");
        // The doorbell page of the first start stays for the next ones; nothing else may.
        let left = rig.report(0).get("objects");
        assert!(
            left <= idle + 1,
            "command {nth} left {left} objects, {idle} before"
        );
        port.start(&one_queue(&pool, 64)).unwrap();
        port.stop().unwrap();
    }
    assert!(failed > 10, "only {failed} commands of start could fail");
    // Started by the last round; it works.
    port.take_rx(0).unwrap();
    port.close().unwrap();
    assert_eq!(function.domain().mappings(), 0);
    drop((port, function));
    rig.assert_clean(0);
}

fn a_refused_command_of_stop_and_close_still_gives_all_back(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let pool = pool(512);
    let mut failed = 0;
    for nth in (1..).step_by(backing.stride()) {
        assert!(nth < 500, "close has no end");
        let function = rig.connect(0).unwrap();
        let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
        port.start(&one_queue(&pool, 64)).unwrap();
        let queues = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
        rig.ask(&format!("arm 0 nth:{nth} fail:{STATUS}:{SYNDROME}"));
        let closed = port.close();
        let met = rig.ask("armed 0") == "0";
        rig.ask("disarm 0");
        if let Err(error) = &closed {
            assert_names_the_fault(error);
            failed += 1;
        }
        // Closed all the same.
        port.close().unwrap();
        assert_eq!(function.domain().mappings(), 0, "command {nth}: {closed:?}");
        drop(queues);
        drop((port, function));
        assert_eq!(pool.in_use(), 0, "command {nth}");
        assert_nothing_left(&rig, nth);
        if !met {
            break;
        }
    }
    assert!(
        failed > 20 / backing.stride(),
        "only {failed} commands of close could fail"
    );
}

fn the_same_bad_start_fails_the_same_way_twice(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    // CREATE_RQ.
    rig.ask(&format!("arm 0 each:0x908 fail:{STATUS}:{SYNDROME}"));
    let first = port.start(&one_queue(&pool, 64)).unwrap_err().to_string();
    let second = port.start(&one_queue(&pool, 64)).unwrap_err().to_string();
    assert_eq!(first, second);
    rig.ask("disarm 0");
    port.start(&one_queue(&pool, 64)).unwrap();
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn late_answers_cost_time_only(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    rig.ask("arm 0 all delay:3");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let closed = port.close().unwrap();
    assert_eq!((closed.pages_kept, closed.reset), (0, false));
    drop(port);
    rig.ask("disarm 0");
    rig.assert_clean(0);
}

fn lost_events_cost_time_only(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    // More commands than there are slots: a slot that stayed taken would show.
    rig.ask("arm 0 all drop-event");
    port.start(&one_queue(&pool, 64)).unwrap();
    port.stop().unwrap();
    let counts = port.events();
    assert!(counts.lost_events >= 20, "{counts:?}");
    assert_eq!(counts.timeouts, 0, "{counts:?}");
    rig.ask("disarm 0");
    port.start(&one_queue(&pool, 64)).unwrap();
    let closed = port.close().unwrap();
    assert_eq!((closed.pages_kept, closed.reset), (0, false));
    drop(port);
    rig.assert_clean(0);
}

fn an_unanswered_command_is_a_time_out_and_close_resets(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open_within(0, Duration::from_secs(2)).unwrap();
    let pool = pool(512);
    // CREATE_SQ is executed, and the driver never hears of it.
    rig.ask("arm 0 opcode:0x904:1 drop-answer");
    let error = port.start(&one_queue(&pool, 64)).unwrap_err();
    assert!(
        matches!(&error, Error::Command(CommandFailure::TimedOut { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("CREATE_SQ"), "{error}");
    assert_eq!(port.events().timeouts, 1);
    // An object may be left whose number nobody knows: only a reset gets rid of it.
    drop(port.close());
    drop(port);
    rig.assert_clean(0);
    assert_eq!(pool.in_use(), 0);
    let port = rig.open(0).unwrap();
    port.start(&one_queue(&pool, 64)).unwrap();
    port.close().unwrap();
}

/// Its registers are well, and yet nothing is answered any more.
fn a_device_that_answers_no_command_is_closed_after_one_deadline(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open_within(0, Duration::from_secs(4)).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let queues = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    rig.ask("arm 0 all drop-answer");
    let error = port.close().unwrap_err().to_string();
    // A question about the link may be under way beside the first command of close.
    let timeouts = port.events().timeouts;
    assert!((1..=2).contains(&timeouts), "{timeouts}: {error}");
    assert_eq!(port.fault(), Some(Fault::Silent));
    drop(queues);
    assert_eq!(pool.in_use(), 0);
    drop(port);
    rig.ask("disarm 0");
    until("the reset", || rig.report(0).get("objects") == 0);
    rig.assert_clean(0);
    let port = rig.open(0).unwrap();
    port.start(&one_queue(&pool, 64)).unwrap();
    let closed = port.close().unwrap();
    assert_eq!((closed.pages_kept, closed.reset), (0, false));
}

fn a_dead_device_is_noticed_and_closed(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let function = rig.connect(0).unwrap();
    let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    rig.ask("kill 0");
    until("the fault is seen", || {
        port.fault() == Some(Fault::NotAnswering)
    });
    assert_eq!(port.link().up, None, "an old state of the link is not kept");
    let refused = port.stats().unwrap_err().to_string();
    assert!(refused.contains("gone"), "{refused}");
    // Commands are dead: pages are released here, nothing waits.
    drop(port.close());
    drop((rx, tx));
    assert_eq!(pool.in_use(), 0);
    assert_eq!(function.domain().mappings(), 0);
    drop((port, function));
    rig.ask("revive 0");
    let port = rig.open(0).unwrap();
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn a_device_that_dies_during_bring_up_leaves_nothing(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    // How many commands there are until the port is open.
    let port = rig.open(0).unwrap();
    let all = rig.report(0).get("commands");
    drop(port);
    for nth in [1, all / 4, all / 2, all * 3 / 4, all - 2] {
        let function = rig.connect(0).unwrap();
        // The command hangs until the device dies under it.
        rig.ask(&format!("arm 0 nth:{nth} drop-answer"));
        let opening = std::thread::spawn({
            let function = function.clone();
            move || Port::open(function, OpenOptions::default())
        });
        until("the command is out", || rig.ask("armed 0") == "0");
        rig.ask("kill 0");
        let error = opening.join().unwrap().map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("gone"), "command {nth}: {error}");
        assert_eq!(function.domain().mappings(), 0, "command {nth}");
        drop(function);
        rig.ask("revive 0");
        let port = rig.open(0).unwrap();
        port.close().unwrap();
        drop(port);
        rig.assert_clean(0);
    }
}

fn a_refused_setting_changes_nothing(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let (mtu, mac) = (port.mtu(), port.mac());
    rig.ask(&format!("arm 0 all fail:{STATUS}:{SYNDROME}"));
    assert_names_the_fault(&port.set_mtu(mtu - 100).unwrap_err());
    assert_names_the_fault(&port.stats().unwrap_err());
    rig.ask("disarm 0");
    assert_eq!((port.mtu(), port.mac()), (mtu, mac));
    let pool = pool(512);
    let mut config = one_queue(&pool, 64);
    config.promiscuous = false;
    port.start(&config).unwrap();
    rig.ask(&format!("arm 0 all fail:{STATUS}:{SYNDROME}"));
    assert_names_the_fault(&port.set_promiscuous(true).unwrap_err());
    let other = pollux_mlx5::MacAddress([2, 0, 0, 0, 0, 0x77]);
    assert_names_the_fault(&port.set_mac(other).unwrap_err());
    rig.ask("disarm 0");
    assert!(!port.promiscuous());
    assert_eq!(port.mac(), mac);
    port.set_mac(other).unwrap();
    assert_eq!(port.mac(), other);
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

/// The whole process of the device ends at once, with traffic under way.
#[test]
fn a_killed_process_is_noticed_and_its_memory_comes_back() {
    kill_the_process(Backing::Process);
}

#[test]
fn a_killed_vfio_user_server_is_noticed_and_its_memory_comes_back() {
    kill_the_process(Backing::VfioUser);
}

fn kill_the_process(backing: Backing) {
    use crate::harness::{load, plain};
    use pollux_mempool::Burst;

    let rig = Rig::new(backing, "wire=loop");
    let function = rig.connect(0).unwrap();
    let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let mut got = Burst::with_capacity(64);
    let mut out = load(&pool, &[plain(1, 100)]);
    tx.burst(&mut out);
    until("traffic flows", || rx.burst(&mut got) > 0);
    rig.kill_process();
    until("the fault is seen", || port.fault().is_some());
    // Queues go on without harm; nothing comes.
    let mut out = load(&pool, &[plain(2, 100)]);
    for _ in 0..100 {
        tx.burst(&mut out);
        assert_eq!(rx.burst(&mut got), 0);
    }
    drop(port.close());
    drop((rx, tx, got, out));
    assert_eq!(pool.in_use(), 0);
    assert_eq!(
        function.domain().mappings(),
        0,
        "a closed socket proves that nobody writes there"
    );
}
