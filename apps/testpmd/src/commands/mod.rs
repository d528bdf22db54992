//! What the commands do, one file per family.
pub mod help;
