//! Receive rules: the flow tables of a function as one snapshot, and the walk of a frame through
//! them.
//!
//! The command side hands over a [`Steering`] after each change of tables, groups, entries or
//! root. Masks and values stay in the PRM's `fte_match_set_lyr_2_4` layout (64 bytes); the frame
//! is brought into the same layout once, and a rule then costs eight words.

/// A mask or value over the outer headers, in the layout of `fte_match_set_lyr_2_4`.
pub type HeaderBits = [u8; 64];

/// All receive rules of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// The table that frames meet first; without one they are dropped.
    pub root: Option<u32>,
    /// All receive tables.
    pub tables: Vec<FlowTable>,
}

/// One flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// Its number.
    pub id: u32,
    /// Where frames go on that no entry matched; dropped without.
    pub miss: Option<u32>,
    /// Groups, in order of their first flow index.
    pub groups: Vec<FlowGroup>,
}

/// Entries that share a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGroup {
    /// Bits that are compared.
    pub mask: HeaderBits,
    /// Entries, in order of their flow index.
    pub entries: Vec<FlowEntry>,
}

/// One flow entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// What the masked headers must be.
    pub value: HeaderBits,
    /// Tag that completions carry (24 bits).
    pub flow_tag: u32,
    /// Flow counters that count it.
    pub counters: Vec<u32>,
    /// What happens.
    pub action: FlowAction,
}

/// What an entry does with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowAction {
    /// Drops it.
    Drop,
    /// Sends it on, a copy to each.
    Forward(Vec<FlowDestination>),
}

/// Where an entry sends frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDestination {
    /// Another table.
    Table(u32),
    /// A TIR.
    Tir(u32),
}
