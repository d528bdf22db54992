//! The data thread: its mailbox, its turn, its sleep.

use super::*;
use crate::wire::WireReport;
use pollux_bus::HostMemory;
use std::sync::Arc;

pub(super) type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// How jobs reach the data thread.
pub(super) struct Mailbox {}

#[allow(unused_variables)]
impl Mailbox {
    pub fn post(&self, job: Job) {}
    pub fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, DataError> {
        Err(DataError::Stopped)
    }
}

/// Everything that the thread owns.
pub(super) struct Engine {}

type Outcome<T = ()> = Result<T, DataError>;

#[allow(
    unused_variables,
    missing_docs,
    clippy::unused_self,
    clippy::needless_pass_by_value
)]
impl Engine {
    pub fn connect(&mut self, function: usize, memory: &Arc<HostMemory>) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn disconnect(&mut self, function: usize) {}
    pub fn reset(&mut self, function: usize) {}
    pub fn enable_uar(&mut self, function: usize, uar: u32) {}
    pub fn disable_uar(&mut self, function: usize, uar: u32) {}
    pub fn watch_eq(&mut self, function: usize, uar: u32, on: bool) {}
    pub fn ring(&mut self, function: usize, uar: u32, offset: u32, value: u64) {}
    pub fn create_cq(&mut self, function: usize, spec: CqSpec) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn destroy_cq(&mut self, function: usize, cqn: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn cq_status(&mut self, function: usize, cqn: u32) -> Outcome<CqStatus> {
        Err(DataError::Stopped)
    }
    pub fn create_sq(&mut self, function: usize, spec: SqSpec) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn modify_sq(&mut self, function: usize, sqn: u32, state: QueueState) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn destroy_sq(&mut self, function: usize, sqn: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn sq_status(&mut self, function: usize, sqn: u32) -> Outcome<QueueStatus> {
        Err(DataError::Stopped)
    }
    pub fn create_rq(&mut self, function: usize, spec: RqSpec) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn modify_rq(&mut self, function: usize, rqn: u32, change: RqChange) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn destroy_rq(&mut self, function: usize, rqn: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn rq_status(&mut self, function: usize, rqn: u32) -> Outcome<QueueStatus> {
        Err(DataError::Stopped)
    }
    pub fn set_mkey(&mut self, function: usize, spec: MkeySpec) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn remove_mkey(&mut self, function: usize, index: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn set_tir(&mut self, function: usize, spec: TirSpec) {}
    pub fn remove_tir(&mut self, function: usize, tirn: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn set_rqt(&mut self, function: usize, spec: RqtSpec) {}
    pub fn remove_rqt(&mut self, function: usize, rqtn: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn set_steering(&mut self, function: usize, steering: Steering) {}
    pub fn flow_counter(&mut self, function: usize, id: u32, clear: bool) -> Traffic {
        Traffic::default()
    }
    pub fn set_link(&mut self, function: usize, link: LinkSpec) {}
    pub fn link_up(&mut self, function: usize) -> bool {
        false
    }
    pub fn counters(&mut self, function: usize) -> Counters {
        Counters::default()
    }
    pub fn clear_counters(&mut self, function: usize) {}
    pub fn out_of_buffer(&mut self, function: usize, counter_set: u8, clear: bool) -> u64 {
        0
    }
    pub fn wire_report(&mut self, function: usize) -> WireReport {
        WireReport::default()
    }
    pub fn ignore_doorbells(&mut self, function: usize, sqn: u32, count: u32) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn corrupt_cqe(
        &mut self,
        function: usize,
        cqn: u32,
        skip: u32,
        bytes: [u8; 64],
    ) -> Outcome {
        Err(DataError::Stopped)
    }
    pub fn set_wire(&mut self, function: usize, up: bool) {}
}

/// The data plane of an emulator.
pub struct DataPlane {
    mailbox: Arc<Mailbox>,
    functions: usize,
}

impl DataPlane {
    /// Opens the wires and starts the thread.
    ///
    /// # Errors
    /// [`DataError::Wire`], [`DataError::Config`], [`DataError::Os`].
    pub fn start(config: DataPlaneConfig) -> Result<Self, DataError> {
        Ok(Self {
            mailbox: Arc::new(Mailbox {}),
            functions: config.functions.len(),
        })
    }

    /// Handle for one function.
    ///
    /// # Errors
    /// [`DataError::Function`].
    pub fn port(&self, function: usize) -> Result<DataPort, DataError> {
        if function >= self.functions {
            return Err(DataError::Function {
                function,
                there: self.functions,
            });
        }
        Ok(DataPort::new(Arc::clone(&self.mailbox), function))
    }
}
