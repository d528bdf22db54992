//! Messages that no honest client sends. After each the server must be as well as before, and the
//! device must have forgotten its client.

use crate::raw::{
    CONFIG, DMA_MAP, GET_INFO, GET_REGION_INFO, READ, RESET, Raw, Rig, SET_IRQS, VERSION, WRITE,
    access_body, header, map_body, version, words,
};
use pollux_bus::vfio_user::{Ending, Event};
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// The server serves, and nothing of the clients before is left.
fn is_well(rig: &Rig) {
    let mut client = rig.client();
    assert_eq!(client.register(0), 0x1111_2222);
    assert_eq!(client.add(0x10_0000), 2);
}

fn shown_out(event: Event) -> String {
    match event {
        Event::Departed(Ending::ShownOut(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lengths_that_cannot_be_end_the_connection() {
    let rig = Rig::new();
    let mut gone = 0;
    for size in [0, 1, 15, 16 + 16 + 0x1_0001, 0x8000_0000, u32::MAX] {
        for command in [VERSION, READ, WRITE, DMA_MAP, 99] {
            let mut client = rig.client();
            client.send(&header(7, command, size, 0), &[]);
            assert!(client.is_closed(), "{size:#x} of {command}");
            gone += 1;
            let why = shown_out(rig.departed(gone));
            assert!(why.contains(&size.to_string()), "{why}");
        }
    }
    is_well(&rig);
}

#[test]
fn bodies_of_any_length_are_answered_and_leave_the_stream_in_step() {
    let rig = Rig::new();
    let mut client = rig.client();
    for command in 0..40 {
        for len in [
            0, 1, 3, 4, 7, 8, 12, 15, 16, 17, 19, 20, 23, 24, 31, 32, 33, 100, 0x1_0000,
        ] {
            let mut body = vec![0xff; len];
            match client.ask(command, &body, &[]) {
                // Nothing in that question is read.
                Ok(_) => assert!([(GET_INFO, 16), (RESET, 0)].contains(&(command, len))),
                Err(errno) => assert!(errno > 0),
            }
            body.fill(0);
            // Zeros can mean something; the answer must only come.
            let outcome = client.ask(command, &body, &[]);
            assert!(outcome.is_ok() || outcome.unwrap_err() > 0);
        }
    }
    client.write(CONFIG, 4, &[0x06, 0]);
    assert_eq!(client.register(0), 0x1111_2222);
}

#[test]
fn nothing_is_served_before_the_version() {
    let rig = Rig::new();
    for command in [GET_INFO, READ, DMA_MAP, RESET, 0, 77] {
        let mut client = rig.dial();
        let error = client.ask(command, &[0; 16], &[]).unwrap_err();
        assert_eq!(error, libc::EINVAL);
        assert!(client.is_closed());
    }
    for body in [
        vec![],
        vec![0, 0, 1],
        vec![1, 0, 0, 0],              // version 1.0
        vec![0xff; 4],                 // version 65535
        [version(), vec![1]].concat(), // no final zero
    ] {
        let mut client = rig.dial();
        assert_eq!(client.ask(VERSION, &body, &[]).unwrap_err(), libc::EINVAL);
        assert!(client.is_closed());
    }
    // A bare version is one; a second is not.
    let mut client = rig.dial();
    let answer = client.ask(VERSION, &[0, 0, 9, 0], &[]).unwrap();
    assert_eq!(answer.body[..4], [0, 0, 1, 0]);
    assert_eq!(answer.body.last(), Some(&0));
    let text = std::str::from_utf8(&answer.body[4..answer.body.len() - 1]).unwrap();
    assert!(text.contains("\"max_msg_fds\":16"), "{text}");
    assert_eq!(
        client.ask(VERSION, &version(), &[]).unwrap_err(),
        libc::EINVAL
    );
    assert_eq!(
        client
            .ask(GET_INFO, &words(&[16, 0, 0, 0]), &[])
            .unwrap()
            .u32(8),
        9
    );
    drop(client);
    is_well(&rig);
}

#[test]
fn a_client_that_leaves_within_a_message_is_forgotten() {
    let rig = Rig::new();
    let mut gone = 0;
    let message = [header(1, READ, 32, 0), access_body(CONFIG, 0, 4)].concat();
    for cut in 1..message.len() {
        let client = rig.client();
        client.send(&message[..cut], &[]);
        drop(client);
        gone += 1;
        assert_eq!(
            rig.departed(gone),
            Event::Departed(Ending::Vanished),
            "after {cut} bytes"
        );
        assert_eq!(rig.fake.disconnects.load(Ordering::SeqCst) as usize, gone);
    }
    is_well(&rig);
}

#[test]
fn messages_in_pieces_are_put_together() {
    let rig = Rig::new();
    let mut client = rig.client();
    let event = pollux_bus::Interrupt::new().unwrap();
    let message = client.message(SET_IRQS, 0, &words(&[20, 0x24, 2, 5, 1]));
    for (at, byte) in message.iter().enumerate() {
        // The descriptor comes with a byte in the middle.
        let fds = [event.as_fd()];
        client.send(&[*byte], if at == 18 { &fds } else { &[] });
    }
    let id = u16::from_ne_bytes([message[0], message[1]]);
    client.answer(id, SET_IRQS).unwrap();
    client.write(0, 8, &5_u32.to_be_bytes());
    assert_eq!(event.take(), 1);
}

#[test]
fn several_messages_in_one_piece_are_taken_apart() {
    let rig = Rig::new();
    let mut client = rig.client();
    let mut all = Vec::new();
    let mut ids = Vec::new();
    for offset in [0_u64, 4, 0x0c] {
        let message = client.message(READ, 0, &access_body(0, offset, 4));
        ids.push(u16::from_ne_bytes([message[0], message[1]]));
        all.extend(message);
    }
    client.send(&all, &[]);
    for id in ids {
        assert_eq!(client.answer(id, READ).unwrap().body.len(), 20);
    }
}

#[test]
fn no_answer_where_none_is_wanted() {
    let rig = Rig::new();
    let mut client = rig.client();
    let store = [access_body(0, 4, 4), 9_u32.to_be_bytes().to_vec()].concat();
    let posted = client.message(WRITE, 0x10, &store);
    client.send(&posted, &[]);
    // One that is refused, too.
    let posted = client.message(WRITE, 0x10, &access_body(99, 0, 4));
    client.send(&posted, &[]);
    let posted = client.message(77, 0x10, &[1, 2, 3]);
    client.send(&posted, &[]);
    assert_eq!(client.register(4), 9);
}

#[test]
fn an_answer_to_nothing_ends_the_connection() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.send(&header(9, READ, 16, 1), &[]);
    assert!(client.is_closed());
    let why = shown_out(rig.departed(1));
    assert!(why.contains("nothing was asked"), "{why}");
    is_well(&rig);
}

#[test]
fn descriptors_that_nobody_asked_for_are_refused_and_closed() {
    let rig = Rig::new();
    let mut client = rig.client();
    let (mut witness, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let body = access_body(CONFIG, 0, 4);
    for count in [1, 16, 17, 100, 253] {
        let fds = vec![theirs.as_fd(); count];
        let error = client.ask(READ, &body, &fds).unwrap_err();
        assert_eq!(error, libc::EINVAL, "{count} descriptors");
    }
    let map = map_body(3, 0, 0x10_0000, 0x1000);
    let fds = vec![theirs.as_fd(); 200];
    assert_eq!(client.ask(DMA_MAP, &map, &fds).unwrap_err(), libc::EINVAL);
    assert_eq!(client.read(CONFIG, 0, 2), [0xb3, 0x15]);
    drop(fds);
    drop(theirs);
    // Nobody holds the other end any more.
    let error = witness.write_all(b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn a_second_client_is_turned_away_and_does_not_disturb_the_first() {
    let rig = Rig::new();
    let mut first = rig.client();
    first.write(0, 4, &5_u32.to_be_bytes());
    for _ in 0..3 {
        let mut second = rig.dial();
        let busy = second.ask(VERSION, &version(), &[]);
        assert_eq!(busy.unwrap_err(), libc::EBUSY);
        assert!(second.is_closed());
        assert_eq!(first.register(4), 5);
    }
    drop(first);
    rig.departed(1);
    is_well(&rig);
    let events = rig.events.lock().unwrap();
    let away = events.iter().filter(|event| **event == Event::TurnedAway);
    assert_eq!(away.count(), 3);
}

#[test]
fn who_waits_silently_is_next() {
    let rig = Rig::new();
    let mut first = rig.client();
    let mut second = rig.dial();
    // Silent ones beyond those who may wait push the longest waiting out.
    let mut rest: Vec<Raw> = (0..16).map(|_| rig.dial()).collect();
    assert_eq!(first.register(0), 0x1111_2222);
    assert!(second.is_closed());
    drop(first);
    let mut next = rest.remove(0);
    next.ask(VERSION, &version(), &[]).unwrap();
    let busy = rest[7].ask(VERSION, &version(), &[]);
    assert_eq!(busy.unwrap_err(), libc::EBUSY);
}

#[test]
fn client_after_client_finds_the_device_as_new() {
    let rig = Rig::new();
    for round in 0..50 {
        // No pause: the one before may not even be gone.
        let mut client = rig.client();
        assert_eq!(client.read(CONFIG, 0x10, 4), [0x0c, 0, 0, 0]);
        client.write(CONFIG, 0x10, &[0xff; 4]);
        client.write(0, 0x1c, &1_u32.to_be_bytes());
        assert_eq!(rig.fake.disconnects.load(Ordering::SeqCst), round);
    }
}

#[test]
fn a_stop_ends_the_session_in_whatever_state_it_is() {
    // Idle, within a message, and with answers unread.
    for bytes in [vec![], header(1, READ, 32, 0)] {
        let mut rig = Rig::new();
        let mut client = rig.client();
        client.send(&bytes, &[]);
        rig.stop();
        assert!(client.is_closed());
        assert_eq!(rig.departed(1), Event::Departed(Ending::Stopped));
        assert_eq!(rig.fake.disconnects.load(Ordering::SeqCst), 1);
    }
    let mut rig = Rig::new();
    let mut client = rig.client();
    let socket = client.socket.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let message = client.message(READ, 0, &access_body(CONFIG, 0, 4096));
        let mut socket = socket;
        while socket.write_all(&message).is_ok() {}
        drop(client);
    });
    rig.stop();
    flood.join().unwrap();
    assert_eq!(rig.departed(1), Event::Departed(Ending::Stopped));
}

#[test]
fn region_lists_need_room() {
    let rig = Rig::new();
    let mut client = rig.client();
    for (room, index) in [(0, 0), (31, 0), (32, 9), (32, u32::MAX)] {
        let body = [words(&[room, 0, index, 0]), vec![0; 16]].concat();
        let error = client.ask(GET_REGION_INFO, &body, &[]).unwrap_err();
        assert_eq!(error, libc::EINVAL, "room {room}, region {index}");
    }
    let body = [words(&[u32::MAX, 0, 0, 0]), vec![0; 16]].concat();
    assert_eq!(
        client.ask(GET_REGION_INFO, &body, &[]).unwrap().body.len(),
        80
    );
}

#[test]
fn functions_do_not_disturb_each_other() {
    let (one, two) = (Rig::new(), Rig::new());
    let mut good = one.client();
    let bad: Vec<Raw> = (0..8)
        .map(|byte| {
            let client = two.dial();
            client.send(&[byte; 64], &[]);
            client
        })
        .collect();
    for _ in 0..100 {
        assert_eq!(good.register(0), 0x1111_2222);
    }
    drop(bad);
}
