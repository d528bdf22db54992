//! A software ConnectX as a program of its own: each function behind a vfio-user socket.
//!
//! [`app`] is the program; what it is told comes from [`args`] and a file, put together by
//! [`settings`]. [`service`] holds the threads that serve the sockets, [`control`] the socket through
//! which scripts ask the emulator.
#![forbid(unsafe_code)]

pub mod app;
pub mod args;
pub mod control;
pub mod service;
pub mod settings;
