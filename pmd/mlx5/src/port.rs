//! A port: one adapter function, opened; its settings, queues, link and statistics.
//!
//! # Lifecycle
//!
//! [`Port::open`] brings the function up. [`Port::start`] makes queues, which
//! [`take_rx`](Port::take_rx) and [`take_tx`](Port::take_tx) hand out, each once for one start.
//! [`Port::stop`] takes them down: a queue that is still out becomes inert and may be dropped at
//! any time. [`Port::close`] (or dropping the port) returns everything to firmware and host. Stop
//! and close may be called again; a call that fails leaves nothing behind, and a second try may
//! succeed.
//!
//! Any thread may call; calls wait for each other and for the control thread. None is for a core
//! that polls queues. A link callback runs on the control thread itself: calls that would have to
//! wait there are refused with [`Error::State`].

mod state;
mod watch;

pub use watch::{Ending, PortWatch};

use crate::config::{MacAddress, OpenOptions, PortConfig, PortInfo};
use crate::control::{Control, EventCounts};
use crate::error::Error;
use crate::health::Fault;
use crate::link::Link;
use crate::link_trouble::{self, LinkTrouble};
use crate::pages::{PageCounts, PageReport};
use crate::queues::Seat;
use crate::rx::RxQueue;
use crate::stats::PortStats;
use crate::tx::TxQueue;
use crate::vport;
use pollux_bus::Function;
use state::{State, View};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What closing a port has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Pages that firmware was given in all.
    pub pages_given: u64,
    /// Pages that firmware did not return (0 unless the device failed).
    pub pages_kept: usize,
    /// Whether the function had to be reset because it did not obey.
    pub reset: bool,
}

/// One port. See the module's text.
pub struct Port {
    info: PortInfo,
    control: Control,
    watch: PortWatch,
    /// Never held while anything is waited for.
    view: Mutex<View>,
    state: Mutex<State>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Port {
    /// Brings a function up: commands, firmware pages, event queues, protection and transport
    /// domain. The link is asked for; [`Port::link`] knows it soon after.
    ///
    /// # Errors
    /// What the bus, the memory or firmware refuse; everything is undone then.
    pub fn open(function: Arc<dyn Function>, options: OpenOptions) -> Result<Self, Error> {
        let removal = function.removal();
        let (info, state) = State::open(function, &options)?;
        let Some(control) = state.device.as_ref().map(|device| device.control.clone()) else {
            return Err(closed(&info, "open"));
        };
        // Whoever listens later is told the state found here.
        control.ask_link();
        let view = Mutex::new(state.view());
        Ok(Self {
            info,
            watch: PortWatch::new(control.clone(), removal),
            control,
            view,
            state: Mutex::new(state),
        })
    }

    /// What the port is.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Runs one call under the lock; not on the control thread, which others wait for while they
    /// hold it.
    fn call<T>(
        &self,
        asked: &'static str,
        call: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.control.is_current() {
            return Err(self.refuse(asked, "calling back", "do it on another thread"));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = state.view();
        result
    }

    fn view(&self) -> View {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, asked: &'static str, state: &'static str, remedy: &'static str) -> Error {
        Error::State {
            function: self.info.identity.name.clone(),
            asked,
            state,
            remedy,
        }
    }

    /// Makes the queues and lets packets in.
    ///
    /// # Errors
    /// A setting outside what the adapter takes, memory, firmware's refusal; everything is undone
    /// then. [`Error::State`] when the port is started already, or closed.
    pub fn start(&self, config: &PortConfig) -> Result<(), Error> {
        self.call("start", |state| {
            if state.device.is_none() {
                return Err(closed(&self.info, "start"));
            }
            if state.started.is_some() {
                return Err(self.refuse("start", "started", "stop it first"));
            }
            state.start(&self.info, config)
        })
    }

    /// Takes the queues down; those that are out are inert from then on. Does nothing when the
    /// port is not started.
    ///
    /// # Errors
    /// The first of what firmware refused; the port is stopped all the same.
    pub fn stop(&self) -> Result<(), Error> {
        self.call("stop", State::stop)
    }

    /// Returns everything to firmware and host. Does nothing on a closed port.
    ///
    /// # Errors
    /// [`Error::Close`] with the first of what failed; the port is closed all the same, and if
    /// the device did not obey, it was reset.
    pub fn close(&self) -> Result<CloseReport, Error> {
        self.call("close", |state| state.close(&self.info.identity.name))
    }

    /// Whether the port is started.
    pub fn is_started(&self) -> bool {
        self.view().started
    }

    /// Takes receive queue `index`.
    ///
    /// # Errors
    /// [`Error::Queue`] when there is none, or it was taken.
    pub fn take_rx(&self, index: usize) -> Result<RxQueue, Error> {
        self.call("receive queue", |state| {
            let seat = state
                .started
                .as_mut()
                .map(|started| started.rx.get_mut(index));
            self.queue("RX", index, seat)
        })
    }

    /// Takes transmit queue `index`.
    ///
    /// # Errors
    /// [`Error::Queue`] when there is none, or it was taken.
    pub fn take_tx(&self, index: usize) -> Result<TxQueue, Error> {
        self.call("transmit queue", |state| {
            let seat = state
                .started
                .as_mut()
                .map(|started| started.tx.get_mut(index));
            self.queue("TX", index, seat)
        })
    }

    fn queue<Q, C>(
        &self,
        kind: &'static str,
        index: usize,
        seat: Option<Option<&mut Seat<Q, C>>>,
    ) -> Result<Q, Error> {
        let why = match seat {
            None => "the port is not started; start it first",
            Some(None) => "there is no such queue; configure more",
            Some(Some(seat)) => match seat.queue.take() {
                Some(queue) => return Ok(queue),
                None => "it was taken already; stop and start the port to get it anew",
            },
        };
        let function = self.info.identity.name.clone();
        Err(Error::Queue {
            function,
            kind,
            index,
            why: why.to_owned(),
        })
    }

    /// State of the link, as far as the device tells it.
    pub fn link(&self) -> Link {
        self.control.shared().link()
    }

    /// Why the link is down, as far as the port says it; nothing when it is up, or where the
    /// adapter does not tell.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn link_trouble(&self) -> Result<Option<LinkTrouble>, Error> {
        self.call("reason of the link", |state| {
            if state.device.is_none() {
                return Err(closed(&self.info, "reason of the link"));
            }
            if self.link().up == Some(true) {
                return Ok(None);
            }
            link_trouble::ask(&self.control)
        })
    }

    /// Has `callback` called with each new state of the link, and at once with the present one if
    /// it is known; it replaces the one before. It runs on the control thread and must return
    /// soon.
    ///
    /// # Errors
    /// [`Error::State`] when the port is closed.
    pub fn on_link_change(&self, callback: impl FnMut(Link) + Send + 'static) -> Result<(), Error> {
        self.call("link callback", |state| match state.device {
            Some(_) => Ok(()),
            None => Err(closed(&self.info, "link callback")),
        })?;
        self.control.shared().on_link_change(Box::new(callback));
        Ok(())
    }

    /// Why the device was given up, if it was. The port can only be closed then.
    pub fn fault(&self) -> Option<Fault> {
        self.control.shared().fault()
    }

    /// For looking whether the port should be closed, from a thread that does not hold it.
    pub fn watch(&self) -> PortWatch {
        self.watch.clone()
    }

    /// What the control thread has met.
    pub fn events(&self) -> EventCounts {
        self.control.shared().counts()
    }

    /// What firmware holds and held of the host's pages; nothing on a closed port and in a link
    /// callback.
    pub fn pages(&self) -> PageCounts {
        self.control.page_counts()
    }

    /// Everything about firmware's pages: a ledger per function, memory, and how long steps took;
    /// nothing on a closed port and in a link callback.
    pub fn page_report(&self) -> PageReport {
        self.control.page_report()
    }

    /// Statistics since the last reset.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn stats(&self) -> Result<PortStats, Error> {
        self.call("statistics", |state| {
            if state.device.is_none() {
                return Err(closed(&self.info, "statistics"));
            }
            let (rx, tx) = State::counters(state.started.as_ref());
            let counts = state.counts();
            state.ledger.read(&self.control, counts, &rx, &tx)
        })
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn reset_stats(&self) -> Result<(), Error> {
        self.call("reset of statistics", |state| {
            if state.device.is_none() {
                return Err(closed(&self.info, "reset of statistics"));
            }
            let (rx, tx) = State::counters(state.started.as_ref());
            let counts = state.counts();
            state.ledger.reset(&self.control, counts, &rx, &tx)
        })
    }

    /// Whether every packet is taken.
    pub fn promiscuous(&self) -> bool {
        self.view().promiscuous
    }

    /// Takes every packet, or only those for the port's address and for all. While the port is
    /// stopped, the setting of the next start decides.
    ///
    /// # Errors
    /// Firmware's refusal, or the port is not started.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), Error> {
        self.call("promiscuous mode", |state| {
            let Some(started) = &mut state.started else {
                return Err(self.refuse("promiscuous mode", "stopped", "start it first"));
            };
            vport::set_promiscuous(&self.control, on)?;
            if let Some(steering) = &mut started.steering {
                if let Err(error) = steering.set_promiscuous(&self.control, on) {
                    vport::set_promiscuous(&self.control, !on)?;
                    return Err(error);
                }
            }
            state.promiscuous = on;
            Ok(())
        })
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> usize {
        self.view().mtu
    }

    /// Sets the largest IP packet.
    ///
    /// # Errors
    /// A size that the device does not take; [`Error::State`] while the port is started, because
    /// its queues were made for the size before.
    pub fn set_mtu(&self, mtu: usize) -> Result<(), Error> {
        self.call("MTU", |state| {
            if state.device.is_none() {
                return Err(closed(&self.info, "MTU"));
            }
            if state.started.is_some() {
                return Err(self.refuse("MTU", "started", "stop it first"));
            }
            state.mtu = vport::set_mtu(&self.control, mtu, self.info.max_mtu)?;
            Ok(())
        })
    }

    /// The address that the port takes packets for.
    pub fn mac(&self) -> MacAddress {
        self.view().mac
    }

    /// Takes packets for another address instead.
    ///
    /// # Errors
    /// A multicast address, or firmware's refusal.
    pub fn set_mac(&self, mac: MacAddress) -> Result<(), Error> {
        if mac.is_multicast() || mac == MacAddress::default() {
            return Err(Error::Address { given: mac });
        }
        self.call("station address", |state| {
            if state.device.is_none() {
                return Err(closed(&self.info, "station address"));
            }
            if let Some(started) = &mut state.started {
                vport::set_addresses(&self.control, &[mac])?;
                if let Some(steering) = &mut started.steering {
                    steering.admit(&self.control, mac)?;
                    if mac != state.mac {
                        steering.expel(&self.control, state.mac)?;
                    }
                }
            }
            state.mac = mac;
            Ok(())
        })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "port dropped");
        }
    }
}

fn closed(info: &PortInfo, asked: &'static str) -> Error {
    Error::State {
        function: info.identity.name.clone(),
        asked,
        state: "closed",
        remedy: "open it again",
    }
}
