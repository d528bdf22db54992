//! Cards that are not as they should be: each is operated where that is possible, and otherwise
//! refused with a message that says what is there, what is needed and what to do.

use crate::harness::{Backing, Rig, one_queue, plain, pool, queues, receive, send, until};
use crate::on_every_backing;
use pollux_mlx5::{Error, OpenOptions, Port};
use std::time::Duration;

on_every_backing! {
    firmware_that_starts_late_is_waited_for
    firmware_that_never_starts_is_given_up
    firmware_that_has_stopped_is_not_asked
    an_infiniband_port_is_refused_with_the_remedy
    a_model_that_is_not_known_is_tried
    what_is_no_mlx5_adapter_is_not_touched
    all_that_is_missing_is_named_at_once
    what_is_optional_may_be_missing
    another_command_interface_is_refused
    firmware_without_interface_steps_is_refused
    pages_beyond_the_hosts_memory_are_refused
    a_port_without_link_starts_and_says_why
    a_port_that_gives_no_reason_has_none
}

/// The message: one line with all these words.
fn says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains('\n'), "{text}");
}

fn refused(rig: &Rig) -> Error {
    let function = rig.connect(0).unwrap();
    let error = Port::open(function.clone(), OpenOptions::default()).unwrap_err();
    assert_eq!(function.domain().mappings(), 0, "{error}");
    drop(function);
    rig.assert_clean(0);
    error
}

fn works(port: &Port) {
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let frames = [plain(1, 60), plain(2, 1500)];
    send(&mut tx, &pool, &frames);
    assert_eq!(receive(&mut rx, 2), frames);
    let stats = port.stats().unwrap();
    assert_eq!((stats.ipackets, stats.opackets), (2, 2));
    drop((rx, tx));
    port.stop().unwrap();
}

fn firmware_that_starts_late_is_waited_for(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    rig.ask("starting 0 never");
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| rig.open(0));
        // Commands before firmware is there would be counted.
        for _ in 0..3 {
            assert_eq!(rig.report(0).get("commands"), 0);
        }
        rig.ask("starting 0 0");
        let port = opening.join().unwrap().unwrap();
        works(&port);
    });
    rig.assert_clean(0);
}

fn firmware_that_never_starts_is_given_up(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    rig.ask("starting 0 never");
    let give_up = || {
        let function = rig.connect(0).unwrap();
        let options = OpenOptions {
            init_deadline: Duration::from_millis(300),
            ..OpenOptions::default()
        };
        Port::open(function, options).unwrap_err()
    };
    let error = give_up();
    assert!(
        matches!(&error, Error::Initializing { waited, .. } if *waited >= Duration::from_millis(300)),
        "{error}"
    );
    says(
        &error,
        &[
            "still initializing after",
            "the limit",
            "mlxfwreset",
            "cold boot",
        ],
    );
    assert_eq!(rig.report(0).get("commands"), 0);
    rig.ask("syndrome 0 0x8");
    says(&give_up(), &["still initializing", "HW_FATAL_ERR"]);
    rig.ask("syndrome 0 0");
    rig.ask("starting 0 0");
    works(&rig.open(0).unwrap());
    rig.assert_clean(0);
}

fn firmware_that_has_stopped_is_not_asked(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    for (code, words) in [
        ("0x10", &["HIGH_TEMP_ERR", "too hot", "cool"]),
        ("0x9", &["FW_CRC_ERR", "burn it anew", "mstflint"]),
        ("0x1", &["FW_INTERNAL_ERR", "mlxfwreset", "cold boot"]),
    ] {
        rig.ask(&format!("syndrome 0 {code}"));
        let error = refused(&rig);
        assert!(matches!(error, Error::Health { .. }), "{error}");
        says(&error, words);
        says(&error, &["firmware has stopped"]);
        assert_eq!(rig.report(0).get("commands"), 0);
    }
    rig.ask("syndrome 0 0");
    works(&rig.open(0).unwrap());
    rig.assert_clean(0);
}

fn an_infiniband_port_is_refused_with_the_remedy(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop,cap=port_type:0+eth_net_offloads:0");
    let error = refused(&rig);
    assert!(matches!(error, Error::PortType { port: 1, .. }), "{error}");
    says(&error, &["InfiniBand", "LINK_TYPE_P1=2", "mlxconfig -d"]);
    // The same again: nothing was left that would change it.
    says(&refused(&rig), &["InfiniBand"]);
}

fn a_model_that_is_not_known_is_tried(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop,device_id=0x1027");
    let port = rig.open(0).unwrap();
    let info = port.info();
    assert_eq!(info.identity.device, 0x1027);
    let [said] = info.shortcomings.as_slice() else {
        panic!("{:?}", info.shortcomings);
    };
    assert!(
        said.contains("15b3:1027") && said.contains("1017"),
        "{said}"
    );
    works(&port);
    drop(port);
    rig.assert_clean(0);
    // Of a card that is known there is nothing to say.
    let plain = Rig::new(backing, "wire=loop");
    let port = plain.open(0).unwrap();
    assert_eq!(port.info().shortcomings, Vec::<String>::new());
}

fn what_is_no_mlx5_adapter_is_not_touched(backing: Backing) {
    for (id, words) in [
        ("0x1003", &["15b3:1003", "older than ConnectX-4"][..]),
        ("0x020d", &["15b3:020d", "flash recovery", "mstflint"]),
    ] {
        // It would take for ever to be found out by its registers.
        let rig = Rig::new(backing, &format!("wire=loop,starting=never,device_id={id}"));
        let error = refused(&rig);
        assert!(matches!(error, Error::NotMlx5 { .. }), "{error}");
        says(&error, words);
    }
}

fn all_that_is_missing_is_named_at_once(backing: Backing) {
    for (less, words) in [
        (
            "eth_net_offloads:0",
            &["eth_net_offloads 0 of 1", "update its firmware"][..],
        ),
        (
            "nic_flow_table:0",
            &[
                "nic_flow_table 0 of 1",
                "rules that bring packets to queues",
            ],
        ),
        ("ft_support:0", &["ft_support"]),
        ("ft_field_support.outer_dmac:0", &["outer_dmac 0 of 1"]),
        ("max_ft_level:0", &["max_ft_level 0 of 1"]),
        ("log_max_ft_size:3", &["log_max_ft_size 3 of 4"]),
        ("log_max_eq:0", &["event queues (log_max_eq) 1 of"]),
        ("log_max_cq:0", &["log_max_cq 0 of 1"]),
        ("log_max_wq_sz:4", &["log_max_wq_sz 4 of 5"]),
        (
            "max_wqe_sz_sq:32+log_max_cq_sz:2",
            &["max_wqe_sz_sq 32 of 64", "log_max_cq_sz 2 of 5"],
        ),
    ] {
        let rig = Rig::new(backing, &format!("wire=loop,cap={less}"));
        let error = refused(&rig);
        assert!(
            matches!(error, Error::Capabilities { .. }),
            "{less}: {error}"
        );
        says(&error, words);
    }
}

fn what_is_optional_may_be_missing(backing: Backing) {
    for (less, word, queues_left) in [
        ("max_qp_cnt:0", "max_qp_cnt", None),
        ("vport_counters:0", "vport_counters", None),
        ("max_ft_level:1", "one receive queue", Some(1)),
        (
            "ft_field_support.outer_ip_protocol:0",
            "one receive queue",
            Some(1),
        ),
        ("release_all_pages:0+driver_version:0", "", None),
    ] {
        let rig = Rig::new(backing, &format!("wire=loop,cap={less}"));
        let port = rig.open(0).unwrap();
        let said = &port.info().shortcomings;
        assert_eq!(
            said.len(),
            usize::from(!word.is_empty()),
            "{less}: {said:?}"
        );
        assert!(said.iter().all(|text| text.contains(word)), "{said:?}");
        if let Some(left) = queues_left {
            assert_eq!(port.info().max_rx_queues, left);
            let pool = pool(512);
            let error = port.start(&queues(&pool, 2, 64)).unwrap_err();
            says(&error, &["receive queues", "at most 1"]);
        }
        works(&port);
        drop(port);
        rig.assert_clean(0);
    }
}

fn another_command_interface_is_refused(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop,cmdif=4");
    let error = refused(&rig);
    assert!(
        matches!(error, Error::Interface { found: 4, .. }),
        "{error}"
    );
    says(&error, &["revision 4", "speaks 5", "update its firmware"]);
    assert_eq!(rig.report(0).get("commands"), 0);
}

fn firmware_without_interface_steps_is_refused(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    // QUERY_ISSI: no such command.
    rig.ask("arm 0 opcode:0x10a:1 fail:2:0x77");
    let error = refused(&rig);
    says(
        &error,
        &[
            "interface step 0 and not 1",
            "QUERY_ISSI",
            "0x77",
            "update its firmware",
        ],
    );
    works(&rig.open(0).unwrap());
}

fn pages_beyond_the_hosts_memory_are_refused(backing: Backing) {
    // 4 TiB.
    for pages in ["boot_pages=1073741824", "init_pages=1073741824"] {
        let rig = Rig::new(backing, &format!("wire=loop,{pages}"));
        let error = refused(&rig);
        assert!(matches!(error, Error::NoPages { .. }), "{error}");
        says(&error, &["1073741824 pages", "4194304 MiB", "the host has"]);
    }
}

fn a_port_without_link_starts_and_says_why(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    for (module, code, words) in [
        ("absent", 1024, "plug one in"),
        ("unsupported", 1025, "does not take"),
        ("hot", 1030, "give it air"),
        ("dark", 2, "other end"),
    ] {
        rig.ask(&format!("module 0 {module}"));
        let port = rig.open(0).unwrap();
        let pool = pool(512);
        port.start(&one_queue(&pool, 64)).unwrap();
        until("the link is known to be down", || {
            port.link().up == Some(false)
        });
        let trouble = port.link_trouble().unwrap().unwrap();
        assert_eq!(trouble.code, code);
        assert!(trouble.to_string().contains(words), "{trouble}");
        // What is sent is taken, as on a card, and lost: the device counts none of it.
        let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
        let lost: Vec<Vec<u8>> = (0..200).map(|n| plain(n, 64)).collect();
        send(&mut tx, &pool, &lost);
        let stats = port.stats().unwrap();
        assert_eq!((stats.opackets, stats.oerrors), (200, 0));
        assert_eq!(stats.device.tx_packets, 0);
        // The link comes, and packets flow.
        rig.ask("module 0 present");
        until("the link is up", || port.link().up == Some(true));
        assert_eq!(port.link_trouble().unwrap(), None);
        send(&mut tx, &pool, &[plain(1000, 64)]);
        // The last of those before may not have been looked at when the link came.
        let last = plain(1000, 64);
        while receive(&mut rx, 1).last() != Some(&last) {}
        drop((rx, tx));
        drop(port);
        rig.assert_clean(0);
    }
}

fn a_port_that_gives_no_reason_has_none(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    rig.ask("module 0 absent");
    let port = rig.open(0).unwrap();
    until("the link is known to be down", || {
        port.link().up == Some(false)
    });
    // An adapter that does not know the register.
    rig.ask("arm 0 opcode:0x805:1 fail:3:0x1");
    assert_eq!(port.link_trouble().unwrap(), None);
    assert_eq!(port.link_trouble().unwrap().unwrap().code, 1024);
    port.close().unwrap();
    assert!(port.link_trouble().is_err());
}
