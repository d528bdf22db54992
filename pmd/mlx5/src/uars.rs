//! UAR pages for send queues: one for each, so that no doorbell can overwrite another's.
//!
//! A page is allocated when a queue first needs one and stays the port's until it is closed; a
//! queue that is out after its port has stopped keeps its page, which no other queue gets before
//! that one is dropped. Control plane only.

use crate::bringup::Device;
use crate::error::Error;
use pollux_bus::Registers;
use std::sync::Arc;

struct Page {
    number: u32,
    registers: Registers,
}

/// A page in use; dropping it gives it back.
#[derive(Clone)]
pub(crate) struct UarPage(Arc<Page>);

impl UarPage {
    /// The device's number of the page.
    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Its registers.
    pub(crate) fn registers(&self) -> &Registers {
        &self.0.registers
    }
}

/// The pages of one port.
#[derive(Default)]
pub(crate) struct UarPages {
    pages: Vec<UarPage>,
}

impl UarPages {
    /// A page that no queue uses.
    ///
    /// # Errors
    /// Firmware's refusal.
    pub(crate) fn take(&mut self, device: &Device) -> Result<UarPage, Error> {
        if let Some(free) = self
            .pages
            .iter()
            .find(|page| Arc::strong_count(&page.0) == 1)
        {
            return Ok(free.clone());
        }
        let (number, registers) = device.alloc_uar()?;
        let page = UarPage(Arc::new(Page { number, registers }));
        self.pages.push(page.clone());
        Ok(page)
    }

    /// Numbers of all pages, which are the port's no more.
    pub(crate) fn drain(&mut self) -> Vec<u32> {
        self.pages.drain(..).map(|page| page.number()).collect()
    }
}
