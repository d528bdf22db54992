//! The data thread's answers to a [`DataPort`](super::DataPort)'s requests.

use super::DataError;
use super::cq::Cq;
use super::engine::Engine;
use super::outlet::Joint;
use super::receiver::Receiver;
use super::request::*;
use super::sq::Sq;
use super::steering::Steering;
use crate::wire::WireReport;
use pollux_bus::HostMemory;
use std::sync::Arc;

type Outcome<T = ()> = Result<T, DataError>;

/// Answers where there is no such function; the port's number was checked when it was made.
fn no_function() -> DataError {
    DataError::Stopped
}

impl Engine {
    pub fn connect(&mut self, function: usize, memory: &Arc<HostMemory>) -> Outcome {
        let there = self.memories.get_mut(function).ok_or_else(no_function)?;
        if there.is_connected() {
            return Err(DataError::Connected { function });
        }
        there.connect(memory);
        Ok(())
    }

    pub fn disconnect(&mut self, function: usize) {
        self.reset(function);
        if let Some(memory) = self.memories.get_mut(function) {
            memory.disconnect();
        }
    }

    pub fn reset(&mut self, function: usize) {
        if let Some(side) = self.completions.get_mut(function) {
            side.cqs.clear();
            side.moderated = false;
            side.events.clear();
        }
        if let Some(sender) = self.senders.get_mut(function) {
            sender.sqs.clear();
        }
        if let Some(receiver) = self.receivers.get_mut(function) {
            receiver.reset();
        }
        if let Some(pages) = self.pages.get_mut(function) {
            pages.clear();
        }
        if let Some(memory) = self.memories.get_mut(function) {
            memory.clear_keys();
        }
        self.clear_counters(function);
    }

    pub fn enable_uar(&mut self, function: usize, uar: u32, on: bool) {
        if let Some(pages) = self.pages.get_mut(function) {
            pages.enable(uar, on);
        }
    }

    pub fn watch_eq(&mut self, function: usize, uar: u32, on: bool) {
        if let Some(pages) = self.pages.get_mut(function) {
            pages.watch_eq(uar, on);
        }
    }

    pub fn create_cq(&mut self, function: usize, spec: CqSpec) -> Outcome {
        let (Some(memory), Some(side), Some(pages)) = (
            self.memories.get_mut(function),
            self.completions.get_mut(function),
            self.pages.get_mut(function),
        ) else {
            return Err(no_function());
        };
        let (number, uar) = (spec.cqn, spec.uar);
        side.cqs.check_free(number)?;
        let moderated = spec.moderation.is_on();
        let place = side.cqs.insert(number, Cq::create(memory, spec)?)?;
        side.moderated |= moderated;
        pages.add_cq(uar, number, place);
        Ok(())
    }

    pub fn modify_cq(&mut self, function: usize, cqn: u32, change: CqChange) -> Outcome {
        let side = self.completions.get_mut(function).ok_or_else(no_function)?;
        side.moderated |= change.moderation.is_on();
        side.cqs.by_number(cqn)?.modify(change);
        Ok(())
    }

    pub fn destroy_cq(&mut self, function: usize, cqn: u32) -> Outcome {
        let side = self.completions.get_mut(function).ok_or_else(no_function)?;
        let cq = side.cqs.remove(cqn)?;
        if let Some(pages) = self.pages.get_mut(function) {
            pages.remove_cq(cq.spec().uar, cqn);
        }
        Ok(())
    }

    pub fn cq_status(&mut self, function: usize, cqn: u32) -> Outcome<CqStatus> {
        let side = self.completions.get_mut(function).ok_or_else(no_function)?;
        Ok(side.cqs.by_number(cqn)?.status())
    }

    pub fn create_sq(&mut self, function: usize, spec: SqSpec) -> Outcome {
        let (Some(memory), Some(side), Some(sender), Some(pages)) = (
            self.memories.get_mut(function),
            self.completions.get_mut(function),
            self.senders.get_mut(function),
            self.pages.get_mut(function),
        ) else {
            return Err(no_function());
        };
        let (number, uar) = (spec.sqn, spec.uar);
        sender.sqs.check_free(number)?;
        let cq = side.cqs.place(spec.cqn)?;
        let sq = Sq::create(memory, spec, cq, sender.features)?;
        let place = sender.sqs.insert(number, sq)?;
        pages.add_sq(uar, number, place);
        Ok(())
    }

    pub fn modify_sq(&mut self, function: usize, sqn: u32, state: QueueState) -> Outcome {
        let sender = self.senders.get_mut(function).ok_or_else(no_function)?;
        sender.sqs.by_number(sqn)?.modify(state);
        Ok(())
    }

    pub fn destroy_sq(&mut self, function: usize, sqn: u32) -> Outcome {
        let sender = self.senders.get_mut(function).ok_or_else(no_function)?;
        let sq = sender.sqs.remove(sqn)?;
        if let Some(pages) = self.pages.get_mut(function) {
            pages.remove_sq(sq.spec().uar, sqn);
        }
        Ok(())
    }

    pub fn sq_status(&mut self, function: usize, sqn: u32) -> Outcome<QueueStatus> {
        let sender = self.senders.get_mut(function).ok_or_else(no_function)?;
        Ok(sender.sqs.by_number(sqn)?.status())
    }

    pub fn create_rq(&mut self, function: usize, spec: RqSpec) -> Outcome {
        let (Some(memory), Some(side), Some(receiver)) = (
            self.memories.get_mut(function),
            self.completions.get_mut(function),
            self.receivers.get_mut(function),
        ) else {
            return Err(no_function());
        };
        let cq = side.cqs.place(spec.cqn)?;
        receiver.create_rq(memory, spec, cq)
    }

    pub fn modify_rq(&mut self, function: usize, rqn: u32, change: RqChange) -> Outcome {
        self.receivers
            .get_mut(function)
            .ok_or_else(no_function)?
            .modify_rq(rqn, change)
    }

    pub fn destroy_rq(&mut self, function: usize, rqn: u32) -> Outcome {
        self.receivers
            .get_mut(function)
            .ok_or_else(no_function)?
            .destroy_rq(rqn)
    }

    pub fn rq_status(&mut self, function: usize, rqn: u32) -> Outcome<QueueStatus> {
        let receiver = self.receivers.get_mut(function).ok_or_else(no_function)?;
        Ok(receiver.rqs.by_number(rqn)?.status())
    }

    pub fn set_mkey(&mut self, function: usize, spec: MkeySpec) -> Outcome {
        self.memories
            .get_mut(function)
            .ok_or_else(no_function)?
            .set_key(spec)
    }

    pub fn remove_mkey(&mut self, function: usize, index: u32) -> Outcome {
        self.memories
            .get_mut(function)
            .ok_or_else(no_function)?
            .remove_key(index)
    }

    pub fn set_tir(&mut self, function: usize, spec: TirSpec) {
        if let Some(receiver) = self.receivers.get_mut(function) {
            receiver.set_tir(spec);
        }
    }

    pub fn remove_tir(&mut self, function: usize, tirn: u32) -> Outcome {
        self.receivers
            .get_mut(function)
            .ok_or_else(no_function)?
            .remove_tir(tirn)
    }

    pub fn set_rqt(&mut self, function: usize, spec: RqtSpec) {
        if let Some(receiver) = self.receivers.get_mut(function) {
            receiver.set_rqt(spec);
        }
    }

    pub fn remove_rqt(&mut self, function: usize, rqtn: u32) -> Outcome {
        self.receivers
            .get_mut(function)
            .ok_or_else(no_function)?
            .remove_rqt(rqtn)
    }

    pub fn set_steering(&mut self, function: usize, steering: Steering) {
        if let Some(receiver) = self.receivers.get_mut(function) {
            receiver.set_steering(steering);
        }
    }

    pub fn flow_counter(&mut self, function: usize, id: u32, clear: bool) -> Traffic {
        let counted = self
            .receivers
            .get_mut(function)
            .map(|receiver| receiver.flow_counter(id, clear));
        let (frames, bytes) = counted.unwrap_or_default();
        Traffic { frames, bytes }
    }

    pub fn set_link(&mut self, function: usize, link: LinkSpec) {
        if let Some(plug) = self.plugs.get_mut(function) {
            plug.link = link;
            plug.tell_wire();
        }
        self.relink();
    }

    pub fn set_wire(&mut self, function: usize, up: bool) {
        if let Some(plug) = self.plugs.get_mut(function) {
            plug.cable = up;
            plug.tell_wire();
        }
        self.relink();
    }

    pub fn hold_wire(&mut self, function: usize, held: bool) {
        if let Some(plug) = self.plugs.get_mut(function) {
            plug.held = held;
        }
    }

    pub fn link_up(&mut self, function: usize) -> bool {
        self.plugs.get(function).is_some_and(|plug| plug.up)
    }

    /// Counters since the emulator started.
    fn total(&self, function: usize) -> Counters {
        let (Some(receiver), Some(sender)) =
            (self.receivers.get(function), self.senders.get(function))
        else {
            return Counters::default();
        };
        let (rx, tx) = (&receiver.tally, &sender.sent);
        Counters {
            port_rx: rx.accepted.minus(&rx.copies).plus(&rx.refused),
            port_tx: tx.frames,
            rx_sizes: rx.sizes,
            rx_too_long: rx.too_long,
            rx_too_short: rx.too_short,
            rx_discards: rx.discards,
            rx_buffer_too_small: rx.buffer_too_small,
            rx_flow_drops: rx.flow_drops,
            rx_no_destination: rx.no_destination,
            tx_discards: tx.discards,
            tx_errors: tx.errors,
            vport_rx: rx.accepted,
            vport_tx: tx.frames,
            stray_doorbells: sender.strays,
        }
    }

    pub fn counters(&mut self, function: usize) -> Counters {
        let (now, base) = match self.senders.get(function) {
            Some(sender) => (self.total(function), &sender.base),
            None => return Counters::default(),
        };
        let since = |now: u64, base: u64| now.wrapping_sub(base);
        Counters {
            port_rx: now.port_rx.minus(&base.port_rx),
            port_tx: now.port_tx.minus(&base.port_tx),
            rx_sizes: std::array::from_fn(|class| {
                let of = |counters: &Counters| counters.rx_sizes.get(class).copied().unwrap_or(0);
                since(of(&now), of(base))
            }),
            rx_too_long: since(now.rx_too_long, base.rx_too_long),
            rx_too_short: since(now.rx_too_short, base.rx_too_short),
            rx_discards: since(now.rx_discards, base.rx_discards),
            rx_buffer_too_small: since(now.rx_buffer_too_small, base.rx_buffer_too_small),
            rx_flow_drops: since(now.rx_flow_drops, base.rx_flow_drops),
            rx_no_destination: since(now.rx_no_destination, base.rx_no_destination),
            tx_discards: since(now.tx_discards, base.tx_discards),
            tx_errors: since(now.tx_errors, base.tx_errors),
            vport_rx: now.vport_rx.minus(&base.vport_rx),
            vport_tx: now.vport_tx.minus(&base.vport_tx),
            stray_doorbells: since(now.stray_doorbells, base.stray_doorbells),
        }
    }

    pub fn clear_counters(&mut self, function: usize) {
        let now = self.total(function);
        if let Some(sender) = self.senders.get_mut(function) {
            sender.base = now;
        }
    }

    pub fn out_of_buffer(&mut self, function: usize, set: u8, clear: bool) -> u64 {
        let receiver = self.receivers.get_mut(function);
        receiver.map_or(0, |receiver| receiver.out_of_buffer(set, clear))
    }

    pub fn wire_report(&mut self, function: usize) -> WireReport {
        let sending = self
            .senders
            .get(function)
            .is_some_and(|sender| sender.sqs.iter().any(Sq::has_work));
        // Frames for a joint wait at the queues that send them.
        let held = |from: usize, to: usize| {
            let into = matches!(
                self.plugs.get(from).map(|plug| &plug.joint),
                Some(Joint::Function(target)) if *target == to
            );
            let sqs = self.senders.get(from).map(|sender| &sender.sqs);
            sqs.filter(|_| into).map_or(0, |sqs| {
                sqs.iter().filter(|sq| sq.is_waiting()).count() as u64
            })
        };
        let held: u64 = (0..self.senders.len())
            .map(|from| held(from, function))
            .sum();
        let arrived = self
            .receivers
            .get(function)
            .map(Receiver::arrived)
            .unwrap_or_default();
        let left = self
            .senders
            .get(function)
            .map(|sender| sender.sent.frames.total());
        let left = left.unwrap_or_default();
        let Some(plug) = self.plugs.get_mut(function) else {
            return WireReport::default();
        };
        let mut report = plug.report.clone();
        (report.frames_in, report.bytes_in) = (arrived.frames, arrived.bytes);
        (report.frames_out, report.bytes_out) = (left.frames, left.bytes);
        report.up = plug.up;
        match &mut plug.joint {
            Joint::Function(_) => {
                report.waiting = held;
                report.drained = !sending && held == 0;
            }
            Joint::Wire(wire) => {
                let left = wire.remaining();
                report.waiting = left.unwrap_or(0);
                report.drained = !sending && left == Some(0);
                if report.drained {
                    wire.flush();
                }
                report.output_error = wire.error();
            }
        }
        report
    }

    pub fn ignore_doorbells(&mut self, function: usize, sqn: u32, count: u32) -> Outcome {
        let sender = self.senders.get_mut(function).ok_or_else(no_function)?;
        sender.sqs.by_number(sqn)?.ignored = count;
        Ok(())
    }

    pub fn corrupt_cqe(&mut self, function: usize, cqn: u32, skip: u32, mask: [u8; 64]) -> Outcome {
        let side = self.completions.get_mut(function).ok_or_else(no_function)?;
        side.cqs.by_number(cqn)?.corrupt(skip, mask);
        Ok(())
    }
}
