//! The driver's end of vfio-user against devices that are honest, refuse, die, fall silent or lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

mod connecting;
mod life;
mod peer;

use peer::{Act, Peer, Question};
use pollux_bus::{BusError, Function, vfio_user};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::sync::Arc;
use std::time::Duration;

/// Long enough for a loaded machine's answer, short enough to wait for.
const SHORT: Duration = Duration::from_millis(400);
/// Far beyond anything that a deadline may allow.
const HANG: Duration = Duration::from_secs(60);

fn connect(peer: &Peer, patience: Duration) -> Result<Arc<dyn Function>, BusError> {
    vfio_user::connect_on(peer.socket.try_clone().unwrap(), "peer", patience)
}

/// A device that does `act` at the first question `when` is true of.
fn liar(
    mut when: impl FnMut(&Question) -> bool + Send + 'static,
    act: impl FnOnce() -> Act + Send + 'static,
) -> Peer {
    let mut act = Some(act);
    Peer::start(move |question| match when(question) {
        true => act.take().map_or(Act::Honest, |act| act()),
        false => Act::Honest,
    })
}

fn page() -> Segment {
    Segment::map(&SegmentRequest::new("page", 0x1000).page(PageChoice::Ordinary)).unwrap()
}

fn assert_lost(what: &str, connected: Result<Arc<dyn Function>, BusError>) {
    match connected {
        Err(BusError::Peer { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: believed"),
    }
}
