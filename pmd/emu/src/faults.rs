//! Faults on demand: what a test asks a function to do wrong.
//!
//! A [`FaultInjector`] is a handle that outlives drivers: what was asked for stays until it was
//! met. Any thread may use it; the command thread looks the faults up as commands come.

use crate::card::{Module, Starting};
use crate::data::{DataError, DataPort};
use crate::init_segment::InitSegment;
use crate::storm::Wave;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which command a fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The `n`th command from now, counted from 1.
    Command(u64),
    /// The `n`th command with this opcode from now, counted from 1.
    Opcode(u16, u64),
    /// Every command with this opcode.
    EveryOpcode(u16),
    /// Every command.
    Every,
}

/// What happens to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFault {
    /// It is not executed; this is the answer.
    Fail {
        /// Command status, see `pollux_prm::command::Status`.
        status: u8,
        /// Syndrome.
        syndrome: u32,
    },
    /// It is not delivered to the firmware; the entry comes back with this delivery status.
    Undelivered {
        /// See `pollux_prm::command_queue::DeliveryStatus`.
        status: u8,
    },
    /// It is executed and answered only so much later: the firmware is busy.
    Wait(Duration),
    /// It is executed, and answered so much later.
    Delay(Duration),
    /// It is executed, and never answered.
    DropAnswer,
    /// It is executed and answered, but no event says so.
    DropEvent,
    /// The function dies of it, as [`FaultInjector::kill`] has it; it is not executed.
    Die,
}

/// A request for pages that the firmware raises of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageDemand {
    /// It wants so many.
    Give(u32),
    /// It offers so many back, and lets go of as many.
    Take(u32),
    /// It offers so many back, but lets go only of those that are idle: a hint, as cards give.
    Hint(u32),
    /// It has dropped all of them.
    ReleaseAll,
}

/// Whose pages they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageOwner {
    /// Function id; 0 is the function itself.
    pub function: u16,
    /// The embedded CPU's function.
    pub embedded: bool,
}

impl PageOwner {
    /// The function itself.
    pub const OWN: Self = Self {
        function: 0,
        embedded: false,
    };
}

/// How the firmware deals with pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageManners {
    /// One TAKE returns no more than this.
    pub partial: Option<u32>,
    /// A GIVE or TAKE of more than this is refused with a bad parameter.
    pub refuse_above: Option<u32>,
    /// After a TAKE the offer is raised again, as long as something of it is left.
    pub repeats: bool,
    /// Every other command waits while pages are owed.
    pub holds: bool,
}

/// What is wrong with the answer to a TAKE. The last address is exchanged, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLie {
    /// For the first one, which so comes back twice.
    Twice,
    /// For one that is no multiple of the page size.
    Misaligned,
    /// For one that was never given.
    Unknown,
    /// For one that another function has.
    Others,
    /// It says that it returns one more than it lists.
    TooMany,
}

#[derive(Debug)]
struct Armed {
    trigger: Trigger,
    /// Commands that matched so far.
    seen: u64,
    fault: CommandFault,
}

#[derive(Debug, Default)]
struct State {
    armed: Vec<Armed>,
    demands: VecDeque<(PageOwner, PageDemand)>,
    storm: Option<Vec<Wave>>,
    manners: PageManners,
    lies: VecDeque<PageLie>,
}

/// Shared by the injector's clones and the function.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
    met: AtomicU64,
    killed: AtomicBool,
    /// A [`Module`].
    module: AtomicU8,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is plugged into the port.
    pub(crate) fn module(&self) -> Module {
        Module::from_number(self.module.load(Ordering::Acquire))
    }

    /// Something else is.
    pub(crate) fn plug(&self, module: Module) {
        self.module.store(module.number(), Ordering::Release);
    }

    /// Whether the function is dead.
    pub(crate) fn killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Faults met so far.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// The fault that this command meets, if any. Counts the command.
    pub(crate) fn meet(&self, opcode: u16) -> Option<CommandFault> {
        let mut state = self.lock();
        let mut found = None;
        for (index, armed) in state.armed.iter_mut().enumerate() {
            let (matches, nth) = match armed.trigger {
                Trigger::Command(nth) => (true, Some(nth)),
                Trigger::Opcode(wanted, nth) => (wanted == opcode, Some(nth)),
                Trigger::EveryOpcode(wanted) => (wanted == opcode, None),
                Trigger::Every => (true, None),
            };
            if !matches {
                continue;
            }
            armed.seen += 1;
            let due = nth.is_none_or(|nth| armed.seen >= nth);
            if due && found.is_none() {
                found = Some((index, armed.fault, nth.is_some()));
            }
        }
        let (index, fault, once) = found?;
        if once {
            state.armed.remove(index);
        }
        self.met.fetch_add(1, Ordering::Relaxed);
        Some(fault)
    }

    /// Page requests that are to be raised now.
    pub(crate) fn demands(&self) -> Vec<(PageOwner, PageDemand)> {
        self.lock().demands.drain(..).collect()
    }

    /// A storm that begins now.
    pub(crate) fn storm(&self) -> Option<Vec<Wave>> {
        self.lock().storm.take()
    }

    /// How pages are dealt with from now on, and lies to come.
    pub(crate) fn manners(&self) -> (PageManners, VecDeque<PageLie>) {
        let mut state = self.lock();
        (state.manners, std::mem::take(&mut state.lies))
    }

    /// The function is dead.
    pub(crate) fn die(&self) {
        self.killed.store(true, Ordering::Release);
    }
}

/// A handle on a function's faults. Cheap to clone.
#[derive(Clone)]
pub struct FaultInjector {
    faults: Arc<Faults>,
    data: DataPort,
    segment: Arc<InitSegment>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl FaultInjector {
    pub(crate) fn new(
        faults: Arc<Faults>,
        data: DataPort,
        segment: Arc<InitSegment>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            faults,
            data,
            segment,
            wake,
        }
    }

    /// The firmware starts anew now, and needs so long, now and after each reset.
    pub fn starting(&self, needs: Starting) {
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        self.segment.start_anew(needs);
    }

    /// The firmware stops with this health syndrome and asks for a reset, which does not help;
    /// 0 makes it well.
    pub fn syndrome(&self, syndrome: u8) {
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        self.segment.fall_ill(syndrome);
    }

    /// Another module, or none, is in the port's cage; the link goes with it.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn module(&self, module: Module) -> Result<(), DataError> {
        self.faults.plug(module);
        self.link(module.works())
    }

    /// Arms a fault for a command to come. Faults are met in the order in which they were armed,
    /// one for a command; those with a number are then gone.
    pub fn command(&self, trigger: Trigger, fault: CommandFault) {
        self.faults.lock().armed.push(Armed {
            trigger,
            seen: 0,
            fault,
        });
    }

    /// Disarms all command faults and page requests that were not met yet.
    pub fn disarm(&self) {
        let mut state = self.faults.lock();
        state.armed.clear();
        state.demands.clear();
        state.lies.clear();
    }

    /// Command faults that were armed and not met yet.
    pub fn armed(&self) -> usize {
        self.faults.lock().armed.len()
    }

    /// Makes the firmware raise a page request. One that releases all is dropped where the driver
    /// has not allowed it by SET_HCA_CAP.
    pub fn page_request(&self, demand: PageDemand) {
        self.page_requests([(PageOwner::OWN, demand)]);
    }

    /// Makes the firmware raise page requests for any functions, all at once and in this order.
    pub fn page_requests(&self, demands: impl IntoIterator<Item = (PageOwner, PageDemand)>) {
        let before = {
            let mut state = self.faults.lock();
            let before = state.demands.len();
            state.demands.extend(demands);
            state.demands.len() - before
        };
        self.faults.met.fetch_add(before as u64, Ordering::Relaxed);
        (self.wake)();
    }

    /// Begins a storm of page requests in place of the one before; its times count from now, or
    /// from INIT_HCA where the firmware does not run yet.
    pub fn storm(&self, waves: Vec<Wave>) {
        self.faults.lock().storm = Some(waves);
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        (self.wake)();
    }

    /// How the firmware deals with pages from its next command on.
    pub fn page_manners(&self, manners: PageManners) {
        self.faults.lock().manners = manners;
        (self.wake)();
    }

    /// Makes the next answer to a TAKE wrong; several lies are told one after the other.
    pub fn lie_about_pages(&self, lie: PageLie) {
        self.faults.lock().lies.push_back(lie);
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        (self.wake)();
    }

    /// Kills the function: every register reads all ones, nothing is answered, nothing raised.
    /// Packets stop. A reset does not help, [`revive`](Self::revive) does.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn kill(&self) -> Result<(), DataError> {
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        self.faults.killed.store(true, Ordering::Release);
        (self.wake)();
        self.data.set_wire(false)
    }

    /// Brings a killed function back, as it was.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn revive(&self) -> Result<(), DataError> {
        self.faults.killed.store(false, Ordering::Release);
        (self.wake)();
        self.data.set_wire(self.faults.module().works())
    }

    /// Whether the function is dead.
    pub fn killed(&self) -> bool {
        self.faults.killed()
    }

    /// Cuts the port's wire, or mends it.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn link(&self, up: bool) -> Result<(), DataError> {
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        self.data.set_wire(up)?;
        (self.wake)();
        Ok(())
    }

    /// Lets what comes in from the port's wire wait, though the link is up, or go on: so that a
    /// capture starts when its receiver is set up, and not with the link.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn hold(&self, held: bool) -> Result<(), DataError> {
        self.data.hold_wire(held)
    }

    /// The next `count` doorbells of a send queue are lost.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn ignore_doorbells(&self, sqn: u32, count: u32) -> Result<(), DataError> {
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        self.data.ignore_doorbells(sqn, count)
    }

    /// The completion that the queue writes after `skip` others is xored with `bytes`.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn corrupt_cqe(&self, cqn: u32, skip: u32, bytes: [u8; 64]) -> Result<(), DataError> {
        self.faults.met.fetch_add(1, Ordering::Relaxed);
        self.data.corrupt_cqe(cqn, skip, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(faults: &Faults, trigger: Trigger, fault: CommandFault) {
        faults.lock().armed.push(Armed {
            trigger,
            seen: 0,
            fault,
        });
    }

    #[test]
    fn faults_wait_for_their_command() {
        let faults = Faults::default();
        let fail = CommandFault::Fail {
            status: 3,
            syndrome: 9,
        };
        arm(&faults, Trigger::Opcode(0x400, 2), fail);
        arm(&faults, Trigger::Command(4), CommandFault::DropEvent);
        assert_eq!(faults.meet(0x400), None);
        assert_eq!(faults.meet(0x100), None);
        assert_eq!(faults.meet(0x400), Some(fail));
        assert_eq!(faults.meet(0x400), Some(CommandFault::DropEvent));
        assert_eq!(faults.meet(0x400), None);
        assert_eq!(faults.met(), 2);
    }

    #[test]
    fn every_stays() {
        let faults = Faults::default();
        arm(&faults, Trigger::EveryOpcode(7), CommandFault::DropAnswer);
        for _ in 0..3 {
            assert_eq!(faults.meet(7), Some(CommandFault::DropAnswer));
            assert_eq!(faults.meet(8), None);
        }
    }
}
