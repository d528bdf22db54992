//! Benchmarks of Pollux beside its peers.
