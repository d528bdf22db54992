//! Functions come up and go, and leave nothing.

use crate::world::{assert_empty, config, emulator, open, options, pool, try_open, until};
use pollux_emu::Model;
use pollux_emu::faults::{CommandFault, Trigger};
use pollux_mlx5::{CloseReport, OpenOptions};
use std::time::Duration;

const MODELS: [Model; 4] = [
    Model::ConnectX4Lx,
    Model::ConnectX5,
    Model::ConnectX6Dx,
    Model::ConnectX7,
];

#[test]
fn every_model_comes_up_and_goes() {
    for model in MODELS {
        let emulator = emulator(model, 1);
        for _ in 0..2 {
            let port = open(&emulator, 0);
            let info = port.info();
            assert!(info.identity.emulated);
            assert_eq!(info.mac.0, emulator.mac(0).unwrap());
            assert!(
                info.max_rx_queues >= 2 && info.max_tx_queues >= 2,
                "{info:?}"
            );
            assert!(info.max_mtu >= 9000, "{info:?}");
            assert!(info.rx_descriptors.max >= 4096, "{info:?}");
            assert_eq!(port.mtu(), 1500);
            until("the link is known", || port.link().up == Some(true));
            assert!(port.link().speed_mbps >= 10_000);
            let report = port.close().unwrap();
            assert_eq!((report.pages_kept, report.reset), (0, false));
            assert!(report.pages_given > 0);
            assert_empty(&emulator, 0);
            assert_eq!(port.close().unwrap(), CloseReport::default());
        }
        assert_eq!(emulator.report(0).unwrap().refused, 0);
    }
}

#[test]
fn signed_answers_are_taken() {
    let emulator = emulator(Model::ConnectX5, 1);
    let options = OpenOptions {
        command_signatures: true,
        ..options()
    };
    let port = try_open(&emulator, 0, options).unwrap();
    let pool = pool(256);
    port.start(&config(&pool, 2)).unwrap();
    port.close().unwrap();
    assert_empty(&emulator, 0);
}

#[test]
fn start_and_stop_make_and_unmake() {
    let emulator = emulator(Model::ConnectX5, 2);
    let ports = [open(&emulator, 0), open(&emulator, 1)];
    let pool = pool(2048);
    let before = emulator.report(0).unwrap().live_objects();
    for queues in [1, 2, 3, 4] {
        for port in &ports {
            port.start(&config(&pool, queues)).unwrap();
        }
        assert_eq!(pool.in_use(), 2 * 64 * queues);
        for port in &ports {
            port.stop().unwrap();
        }
        assert_eq!(pool.in_use(), 0);
        let pages = queues; // doorbell pages stay with the port
        assert_eq!(emulator.report(0).unwrap().live_objects(), before + pages);
    }
    for (number, port) in ports.iter().enumerate() {
        port.close().unwrap();
        assert_empty(&emulator, number);
        assert_eq!(emulator.report(number).unwrap().refused, 0);
    }
}

/// Opens, starts, stops and closes; whether every step went well.
fn whole_life(emulator: &pollux_emu::Emulator, pool: &pollux_mempool::Pool) -> bool {
    let Ok(port) = try_open(emulator, 0, options()) else {
        return false;
    };
    let started = port.start(&config(pool, 2)).is_ok();
    let stopped = port.stop().is_ok();
    let closed = port.close().is_ok_and(|report| !report.reset);
    started && stopped && closed
}

#[test]
fn a_refusal_at_any_command_leaves_nothing_and_a_second_try_works() {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let pool = pool(512);
    assert!(whole_life(&emulator, &pool));
    let commands = emulator.report(0).unwrap().commands;
    let mut noticed = 0;
    for victim in 1..=commands {
        let fault = CommandFault::Fail {
            status: 0x3,
            syndrome: 0x51,
        };
        faults.command(Trigger::Command(victim), fault);
        noticed += u64::from(!whole_life(&emulator, &pool));
        faults.disarm();
        assert_empty(&emulator, 0);
        assert_eq!(pool.in_use(), 0, "after command {victim}");
        assert!(
            whole_life(&emulator, &pool),
            "second try after command {victim}"
        );
        assert_empty(&emulator, 0);
    }
    // Unnoticed are questions about the link, the driver's name, and the reset of queues that are
    // destroyed next.
    assert!(noticed + 12 >= commands, "{noticed} of {commands}");
}

#[test]
fn lost_events_and_late_answers_cost_time_only() {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let pool = pool(512);
    faults.command(Trigger::Opcode(0x404, 1), CommandFault::DropEvent); // never sent
    for opcode in [0x400, 0x904, 0x908, 0x930] {
        faults.command(Trigger::Opcode(opcode, 1), CommandFault::DropEvent);
        let late = CommandFault::Delay(Duration::from_millis(5));
        faults.command(Trigger::Opcode(opcode, 1), late);
    }
    let port = open(&emulator, 0);
    port.start(&config(&pool, 2)).unwrap();
    assert_eq!(port.events().lost_events, 4);
    assert_eq!(port.events().timeouts, 0);
    port.close().unwrap();
    faults.disarm();
    assert_empty(&emulator, 0);
}

#[test]
fn a_command_without_answer_is_named_and_the_function_survives() {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let pool = pool(512);
    for opcode in [0x102, 0x301, 0x200, 0x908] {
        faults.command(Trigger::Opcode(opcode, 1), CommandFault::DropAnswer);
        let patience = OpenOptions {
            command_deadline: Duration::from_millis(100),
            ..options()
        };
        let error = match try_open(&emulator, 0, patience) {
            Err(error) => error,
            Ok(port) => {
                let error = port.start(&config(&pool, 1)).unwrap_err();
                drop(port);
                error
            }
        };
        let text = error.to_string();
        assert!(
            text.contains(&format!("{opcode:#x}")) && text.contains("no answer"),
            "{text}"
        );
        assert_empty(&emulator, 0);
        assert_eq!(pool.in_use(), 0);
        assert!(whole_life(&emulator, &pool), "after {opcode:#x}");
    }
}
