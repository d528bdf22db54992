//! The forwarder.
fn main() {}
