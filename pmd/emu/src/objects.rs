//! The function's objects: numbers, owners, who uses whom.
//!
//! Every object has a kind, a number, an owner (the uid of the command that made it) and the
//! objects that it uses. One that is in use cannot be destroyed; a number that names nothing, or
//! something of another owner, is refused by whoever asks. The contexts of the objects are kept
//! by the command families.

use std::collections::BTreeMap;
use std::fmt;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Doorbell page.
    Uar = 1,
    /// Event queue.
    Eq,
    /// Protection domain.
    Pd,
    /// Transport domain.
    TransportDomain,
    /// Memory key.
    Mkey,
    /// Completion queue.
    Cq,
    /// Send queue.
    Sq,
    /// Receive queue.
    Rq,
    /// Transport interface, send side.
    Tis,
    /// Transport interface, receive side.
    Tir,
    /// RSS indirection table.
    Rqt,
    /// Queue counter set.
    QCounter,
    /// Flow counter.
    FlowCounter,
    /// Flow table.
    FlowTable,
    /// Flow group.
    FlowGroup,
    /// Flow entry.
    FlowEntry,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Uar,
        Self::Eq,
        Self::Pd,
        Self::TransportDomain,
        Self::Mkey,
        Self::Cq,
        Self::Sq,
        Self::Rq,
        Self::Tis,
        Self::Tir,
        Self::Rqt,
        Self::QCounter,
        Self::FlowCounter,
        Self::FlowTable,
        Self::FlowGroup,
        Self::FlowEntry,
    ];

    /// How people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uar => "UAR page",
            Self::Eq => "event queue",
            Self::Pd => "protection domain",
            Self::TransportDomain => "transport domain",
            Self::Mkey => "memory key",
            Self::Cq => "completion queue",
            Self::Sq => "send queue",
            Self::Rq => "receive queue",
            Self::Tis => "TIS",
            Self::Tir => "TIR",
            Self::Rqt => "RQ table",
            Self::QCounter => "queue counter set",
            Self::FlowCounter => "flow counter",
            Self::FlowTable => "flow table",
            Self::FlowGroup => "flow group",
            Self::FlowEntry => "flow entry",
        }
    }

    /// The kind with this number.
    pub fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One object. Flow groups and entries are numbered within their table, in the upper half.
pub type ObjectId = (Kind, u64);

#[derive(Clone, Debug)]
struct Entry {
    uid: u16,
    users: usize,
    uses: Vec<ObjectId>,
}

/// Why an object cannot go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is none, or it belongs to somebody else.
    Absent,
    /// Others use it.
    InUse,
}

/// All live objects of a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    entries: BTreeMap<ObjectId, Entry>,
    changes: u64,
}

impl Objects {
    /// Whether `id` exists and belongs to `uid`. The driver itself (uid 0) may use everything.
    pub fn has(&self, id: ObjectId, uid: u16) -> bool {
        self.entries
            .get(&id)
            .is_some_and(|entry| uid == 0 || entry.uid == uid)
    }

    /// Smallest number at or above `first` and below `end` that is free.
    pub fn free_number(&self, kind: Kind, first: u64, end: u64) -> Option<u64> {
        let mut next = first;
        for (_, number) in self
            .entries
            .range((kind, first)..(kind, end))
            .map(|(id, _)| *id)
        {
            if number != next {
                break;
            }
            next += 1;
        }
        (next < end).then_some(next)
    }

    /// Objects made and destroyed so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Enters a new object; the caller has seen that what it uses is there.
    pub fn create(&mut self, id: ObjectId, uid: u16, uses: Vec<ObjectId>) {
        self.changes += 1;
        for used in &uses {
            if let Some(entry) = self.entries.get_mut(used) {
                entry.users += 1;
            }
        }
        self.entries.insert(
            id,
            Entry {
                uid,
                users: 0,
                uses,
            },
        );
    }

    /// Changes what an object uses.
    pub fn reuse(&mut self, id: ObjectId, uses: Vec<ObjectId>) {
        for used in &uses {
            if let Some(entry) = self.entries.get_mut(used) {
                entry.users += 1;
            }
        }
        let old = match self.entries.get_mut(&id) {
            Some(entry) => std::mem::replace(&mut entry.uses, uses),
            None => uses,
        };
        self.release(&old);
    }

    /// Whether [`destroy`](Self::destroy) would succeed.
    pub fn destroyable(&self, id: ObjectId, uid: u16) -> Result<(), Refused> {
        match self.entries.get(&id) {
            Some(entry) if uid != 0 && entry.uid != uid => Err(Refused::Absent),
            Some(entry) if entry.users > 0 => Err(Refused::InUse),
            Some(_) => Ok(()),
            None => Err(Refused::Absent),
        }
    }

    /// Removes an object that nobody uses.
    pub fn destroy(&mut self, id: ObjectId, uid: u16) -> Result<(), Refused> {
        self.destroyable(id, uid)?;
        self.changes += 1;
        if let Some(entry) = self.entries.remove(&id) {
            self.release(&entry.uses);
        }
        Ok(())
    }

    fn release(&mut self, uses: &[ObjectId]) {
        for used in uses {
            if let Some(entry) = self.entries.get_mut(used) {
                entry.users = entry.users.saturating_sub(1);
            }
        }
    }

    /// Live objects.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Numbers of the live objects by kind, those kinds that have any.
    pub fn by_kind(&self) -> BTreeMap<Kind, Vec<u64>> {
        let mut out = BTreeMap::<Kind, Vec<u64>>::new();
        for (kind, number) in self.entries.keys() {
            out.entry(*kind).or_default().push(*number);
        }
        out
    }

    /// A kind of which something is alive.
    pub fn some_kind(&self) -> Option<Kind> {
        self.entries.keys().next().map(|(kind, _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_objects_stay_and_numbers_come_back() {
        let mut objects = Objects::default();
        assert_eq!(objects.free_number(Kind::Pd, 1, 3), Some(1));
        objects.create((Kind::Pd, 1), 0, vec![]);
        objects.create((Kind::Mkey, 7), 0, vec![(Kind::Pd, 1)]);
        assert_eq!(objects.free_number(Kind::Pd, 1, 3), Some(2));
        assert_eq!(objects.destroy((Kind::Pd, 1), 0), Err(Refused::InUse));
        objects.create((Kind::Pd, 2), 0, vec![]);
        assert_eq!(objects.free_number(Kind::Pd, 1, 3), None);
        objects.reuse((Kind::Mkey, 7), vec![(Kind::Pd, 2)]);
        assert_eq!(objects.destroy((Kind::Pd, 1), 0), Ok(()));
        assert_eq!(objects.destroy((Kind::Pd, 1), 0), Err(Refused::Absent));
        assert_eq!(objects.free_number(Kind::Pd, 1, 3), Some(1));
        assert_eq!(objects.destroy((Kind::Mkey, 7), 0), Ok(()));
        assert_eq!(objects.destroy((Kind::Pd, 2), 0), Ok(()));
        assert_eq!(objects.len(), 0);
    }

    #[test]
    fn owners_do_not_see_each_other() {
        let mut objects = Objects::default();
        objects.create((Kind::TransportDomain, 1), 5, vec![]);
        assert!(
            objects.has((Kind::TransportDomain, 1), 5)
                && objects.has((Kind::TransportDomain, 1), 0)
        );
        assert!(!objects.has((Kind::TransportDomain, 1), 6));
        assert_eq!(
            objects.destroy((Kind::TransportDomain, 1), 6),
            Err(Refused::Absent)
        );
    }
}
