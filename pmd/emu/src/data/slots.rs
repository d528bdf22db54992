//! Tables of numbered objects: found by number when asked for, by place when a packet needs them.

use super::{DataError, Kind};
use std::collections::HashMap;

/// A table.
#[derive(Debug)]
pub(super) struct Slots<T> {
    kind: Kind,
    items: Vec<Option<T>>,
    places: HashMap<u32, usize>,
}

impl<T> Slots<T> {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            items: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Whether `number` may be inserted.
    pub fn check_free(&self, number: u32) -> Result<(), DataError> {
        if self.places.contains_key(&number) {
            return Err(DataError::Exists {
                kind: self.kind,
                number,
            });
        }
        Ok(())
    }

    pub fn insert(&mut self, number: u32, item: T) -> Result<usize, DataError> {
        self.check_free(number)?;
        let place = match self.items.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.items.push(None);
                self.items.len() - 1
            }
        };
        if let Some(slot) = self.items.get_mut(place) {
            *slot = Some(item);
        }
        self.places.insert(number, place);
        Ok(place)
    }

    pub fn remove(&mut self, number: u32) -> Result<T, DataError> {
        self.places
            .remove(&number)
            .and_then(|place| self.items.get_mut(place))
            .and_then(Option::take)
            .ok_or(DataError::Unknown {
                kind: self.kind,
                number,
            })
    }

    pub fn clear(&mut self) {
        self.items.clear();
        self.places.clear();
    }

    pub fn place(&self, number: u32) -> Result<usize, DataError> {
        self.places.get(&number).copied().ok_or(DataError::Unknown {
            kind: self.kind,
            number,
        })
    }

    pub fn by_number(&mut self, number: u32) -> Result<&mut T, DataError> {
        let (place, kind) = (self.place(number)?, self.kind);
        self.at(place).ok_or(DataError::Unknown { kind, number })
    }

    /// The object at a place.
    #[inline(always)]
    pub fn at(&mut self, place: usize) -> Option<&mut T> {
        self.items.get_mut(place).and_then(Option::as_mut)
    }

    /// The object at a place.
    #[inline(always)]
    pub fn get(&self, place: usize) -> Option<&T> {
        self.items.get(place).and_then(Option::as_ref)
    }

    /// Places up to the highest one taken.
    #[inline(always)]
    pub fn places(&self) -> usize {
        self.items.len()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }
}
