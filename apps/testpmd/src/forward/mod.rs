//! Forwarding: which core serves which queues, and the loops that do it.
//!
//! A *stream* is one receive queue, the transmit queue that its packets leave by, and
//! their counters; it belongs to one core while forwarding runs. [`plan`] deals streams to
//! cores; [`job::Job`] is one core's work, moved to its thread and back; [`engine`] has
//! what all modes share, and each mode has a file.
//!
//! The loop allocates nothing, locks nothing and calls no kernel. It is compiled once per
//! mode, with or without reading a clock, with or without yielding its CPU; the choice is
//! made once, at start.

pub mod counters;
pub mod engine;
pub mod io;
pub mod job;
pub mod mac;
pub mod macswap;
pub mod plan;
pub mod queue;
pub mod rxonly;
pub mod stream;
pub mod txonly;
pub mod verbose;
