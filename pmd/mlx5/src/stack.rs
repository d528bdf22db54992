//! The teardown stack: everything made on the device pushes how it is unmade.
//!
//! [`Stack::unwind`] runs the steps in reverse order and goes on after a failure, so that one
//! object which firmware does not let go of does not keep the others. Memory that the device may
//! still write because its object could not be destroyed goes to the [`Graveyard`], which is
//! emptied only when the function cannot reach memory any more.

use crate::control::Control;
use crate::error::Error;
use crate::shelf::Shelf;
use pollux_prm::command::Command;
use std::sync::Arc;

/// What must be kept until the function is switched off: memory, and shelves of dropped queues.
#[derive(Default)]
pub(crate) struct Graveyard {
    memory: Vec<Box<dyn Send>>,
    shelves: Vec<Arc<Shelf>>,
}

impl Graveyard {
    /// Keeps `memory`.
    pub(crate) fn bury(&mut self, memory: impl Send + 'static) {
        self.memory.push(Box::new(memory));
    }

    /// Keeps what is and what will be on `shelf`.
    pub(crate) fn bury_shelf(&mut self, shelf: Arc<Shelf>) {
        self.shelves.push(shelf);
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.shelves.is_empty()
    }

    /// The device cannot reach memory any more: lets go of everything.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
        self.shelves.drain(..).for_each(|shelf| shelf.free());
    }
}

type Undo = Box<dyn FnOnce(&Control, &mut Graveyard) -> Result<(), Error> + Send>;

/// Steps that undo what was done, the last one first.
#[derive(Default)]
pub(crate) struct Stack {
    steps: Vec<(&'static str, Undo)>,
}

impl Stack {
    /// Something was made; `undo` unmakes it.
    pub(crate) fn push(
        &mut self,
        what: &'static str,
        undo: impl FnOnce(&Control, &mut Graveyard) -> Result<(), Error> + Send + 'static,
    ) {
        self.steps.push((what, Box::new(undo)));
    }

    /// An object was made that the command `D` destroys.
    pub(crate) fn destroy<D: Command>(&mut self, what: &'static str, input: D::Input)
    where
        D::Input: Send,
    {
        self.push(what, move |control, _| {
            control.execute::<D>(&input)?;
            Ok(())
        });
    }

    /// Undoes all, the last step first. Returns what failed.
    pub(crate) fn unwind(&mut self, control: &Control, graveyard: &mut Graveyard) -> Vec<Error> {
        let mut errors = Vec::new();
        while let Some((what, undo)) = self.steps.pop() {
            if let Err(error) = undo(control, graveyard) {
                tracing::warn!(what, %error, "not undone");
                errors.push(error);
            }
        }
        errors
    }
}
