//! MSI-X vectors and the eventfds that stand for them.

use crate::raw::{BAR0, CONFIG, MSIX, Raw, Rig};
use pollux_bus::Interrupt;
use std::os::fd::AsFd;

const TRIGGER: u32 = 0x20;
const NONE: u32 = 1;
const BOOL: u32 = 2;
const EVENTFD: u32 = 4;

fn raise(client: &mut Raw, vector: u32) {
    client.write(BAR0, 8, &vector.to_be_bytes());
}

fn vector() -> Interrupt {
    Interrupt::new().unwrap()
}

#[test]
fn vectors_are_joined_and_let_go_one_by_one() {
    let rig = Rig::new();
    let mut client = rig.client();
    let (a, b) = (vector(), vector());
    let fds = [a.as_fd(), b.as_fd()];
    client
        .set_irqs([TRIGGER | EVENTFD, MSIX, 3, 2], &[], &fds)
        .unwrap();
    raise(&mut client, 3);
    raise(&mut client, 4);
    raise(&mut client, 4);
    assert_eq!((a.take(), b.take()), (1, 2));
    // One vector, no descriptor: that one is off.
    client
        .set_irqs([TRIGGER | EVENTFD, MSIX, 4, 1], &[], &[])
        .unwrap();
    raise(&mut client, 3);
    raise(&mut client, 4);
    assert_eq!((a.take(), b.take()), (1, 0));
    // No vectors, no data: all are off.
    client
        .set_irqs([TRIGGER | NONE, MSIX, 0, 0], &[], &[])
        .unwrap();
    raise(&mut client, 3);
    assert_eq!(a.take(), 0);
}

#[test]
fn what_is_raised_in_between_is_not_lost() {
    let rig = Rig::new();
    let mut client = rig.client();
    let a = vector();
    let join = |client: &mut Raw, a: &Interrupt| {
        client
            .set_irqs([TRIGGER | EVENTFD, MSIX, 0, 1], &[], &[a.as_fd()])
            .unwrap();
    };
    join(&mut client, &a);
    // As when a driver enables one more vector: all off, all on again.
    client
        .set_irqs([TRIGGER | NONE, MSIX, 0, 0], &[], &[])
        .unwrap();
    raise(&mut client, 0);
    raise(&mut client, 0);
    join(&mut client, &a);
    assert_eq!(a.take(), 1);
    // Raised while MSI-X is off for good: gone.
    client.write(CONFIG, 0x9e, &0x8000_u16.to_le_bytes());
    client
        .set_irqs([TRIGGER | NONE, MSIX, 0, 0], &[], &[])
        .unwrap();
    raise(&mut client, 0);
    client.write(CONFIG, 0x9e, &[0, 0]);
    join(&mut client, &a);
    assert_eq!(a.take(), 0);
}

#[test]
fn a_client_can_raise_its_own() {
    let rig = Rig::new();
    let mut client = rig.client();
    let (a, b) = (vector(), vector());
    let fds = [a.as_fd(), b.as_fd()];
    client
        .set_irqs([TRIGGER | EVENTFD, MSIX, 0, 2], &[], &fds)
        .unwrap();
    client
        .set_irqs([TRIGGER | NONE, MSIX, 1, 1], &[], &[])
        .unwrap();
    assert_eq!((a.take(), b.take()), (0, 1));
    client
        .set_irqs([TRIGGER | BOOL, MSIX, 0, 2], &[1, 0], &[])
        .unwrap();
    assert_eq!((a.take(), b.take()), (1, 0));
}

#[test]
fn nonsense_about_interrupts_is_refused() {
    let rig = Rig::new();
    let mut client = rig.client();
    let a = vector();
    let page = std::fs::File::open("/dev/zero").unwrap();
    for (what, set, data, fds) in [
        (
            "past the last",
            [TRIGGER | EVENTFD, MSIX, 40, 1],
            &[][..],
            vec![a.as_fd()],
        ),
        (
            "a range that wraps",
            [TRIGGER | EVENTFD, MSIX, u32::MAX, 2],
            &[],
            vec![a.as_fd()],
        ),
        (
            "a huge count",
            [TRIGGER | NONE, MSIX, 0, u32::MAX],
            &[],
            vec![],
        ),
        (
            "fewer descriptors",
            [TRIGGER | EVENTFD, MSIX, 0, 2],
            &[],
            vec![a.as_fd()],
        ),
        (
            "more descriptors",
            [TRIGGER | EVENTFD, MSIX, 0, 1],
            &[],
            vec![a.as_fd(), a.as_fd()],
        ),
        (
            "descriptors for nothing",
            [TRIGGER | EVENTFD, MSIX, 0, 0],
            &[],
            vec![a.as_fd()],
        ),
        (
            "descriptors without use",
            [TRIGGER | NONE, MSIX, 0, 1],
            &[],
            vec![a.as_fd()],
        ),
        (
            "no eventfd",
            [TRIGGER | EVENTFD, MSIX, 0, 1],
            &[],
            vec![page.as_fd()],
        ),
        (
            "one of two no eventfd",
            [TRIGGER | EVENTFD, MSIX, 0, 2],
            &[],
            vec![a.as_fd(), page.as_fd()],
        ),
        (
            "too few switches",
            [TRIGGER | BOOL, MSIX, 0, 3],
            &[1, 1],
            vec![],
        ),
        (
            "too many switches",
            [TRIGGER | BOOL, MSIX, 0, 1],
            &[1, 1],
            vec![],
        ),
        ("a mask", [0x08 | NONE, MSIX, 0, 1], &[], vec![]),
        ("no action", [EVENTFD, MSIX, 0, 1], &[], vec![a.as_fd()]),
        ("no data", [TRIGGER, MSIX, 0, 1], &[], vec![]),
        (
            "two kinds of data",
            [TRIGGER | 6, MSIX, 0, 1],
            &[],
            vec![a.as_fd()],
        ),
        (
            "INTx, which is not there",
            [TRIGGER | EVENTFD, 0, 0, 1],
            &[],
            vec![a.as_fd()],
        ),
        ("no such kind", [TRIGGER | NONE, 3, 0, 0], &[], vec![]),
        (
            "no such kind at all",
            [TRIGGER | NONE, u32::MAX, 0, 0],
            &[],
            vec![],
        ),
    ] {
        assert_eq!(
            client.set_irqs(set, data, &fds),
            Err(libc::EINVAL),
            "{what}"
        );
        raise(&mut client, 0);
        assert_eq!(a.take(), 0, "{what}: joined all the same");
    }
    // Kinds that have no vectors can be switched off.
    assert_eq!(client.set_irqs([TRIGGER | NONE, 0, 0, 0], &[], &[]), Ok(()));
}

#[test]
fn eventfds_are_let_go_with_their_client() {
    let rig = Rig::new();
    let mut client = rig.client();
    let a = vector();
    client
        .set_irqs([TRIGGER | EVENTFD, MSIX, 0, 1], &[], &[a.as_fd()])
        .unwrap();
    let host = rig.fake.host().expect("connected");
    drop(client);
    rig.departed(1);
    host.interrupts.raise(0);
    assert_eq!(a.take(), 0);
}

#[test]
fn an_eventfd_that_became_a_trap_holds_nobody_up() {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::eventfd::EventFd;
    let mut rig = Rig::new();
    for round in 1..=2 {
        let mut client = rig.client();
        let trap = EventFd::from_value(0).unwrap();
        let fds = [trap.as_fd()];
        client
            .set_irqs([TRIGGER | EVENTFD, MSIX, 0, 1], &[], &fds)
            .unwrap();
        // Blocking, and full.
        fcntl(&trap, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        trap.write(u64::MAX - 1).unwrap();
        // The device raises on a thread of its own.
        let host = rig.fake.host().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let raised = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            host.interrupts.raise(0)
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        // Until it sleeps, which it can only do in its raise.
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        if round == 1 {
            // While it stands still, the client can still be served: all off.
            client
                .set_irqs([TRIGGER | NONE, MSIX, 0, 0], &[], &[])
                .unwrap();
            drop(client);
            rig.departed(1);
        } else {
            rig.stop();
        }
        raised.join().unwrap();
    }
}
