//! Where dropped queues leave what is left of them: their buffers, which the device may still
//! touch as long as its half of the queue exists.

use std::sync::{Mutex, MutexGuard, PoisonError};

type Anything = Box<dyn Send>;

#[derive(Default)]
struct Content {
    /// The device has let go: nothing needs to be kept any more.
    free: bool,
    remains: Vec<Anything>,
}

/// The shelf of one start of a port.
#[derive(Default)]
pub(crate) struct Shelf(Mutex<Content>);

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `remains` until the device has let go, or drops them at once if it has.
    pub(crate) fn put(&self, remains: impl Send + 'static) {
        let mut content = self.lock();
        if content.free {
            drop(content);
            drop(remains);
        } else {
            content.remains.push(Box::new(remains));
        }
    }

    /// The device has let go.
    pub(crate) fn free(&self) {
        let remains = {
            let mut content = self.lock();
            content.free = true;
            std::mem::take(&mut content.remains)
        };
        drop(remains);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn keeps_until_the_device_has_let_go() {
        let shelf = Shelf::default();
        let buffer = Arc::new(());
        shelf.put(Arc::clone(&buffer));
        assert_eq!(Arc::strong_count(&buffer), 2);
        shelf.free();
        assert_eq!(Arc::strong_count(&buffer), 1);
        shelf.put(Arc::clone(&buffer));
        assert_eq!(
            Arc::strong_count(&buffer),
            1,
            "nothing is kept for a device that is done"
        );
    }
}
