//! Benchmarks of Pollux beside its peers.
//!
//! Each family is a program of its own (`src/bin`), run by `scripts/bench NAME`. It ends with one
//! line per figure, `figure<TAB>value<TAB>unit`, or with one JSON object (`--json`). Every family
//! has `--sabotage`, under which its claim fails: a benchmark that cannot fail measures nothing.
#![forbid(unsafe_code)]

pub mod datapath;
pub mod draw;
pub mod figures;
pub mod forwarder;
pub mod pages;
pub mod quiet;
pub mod server;
