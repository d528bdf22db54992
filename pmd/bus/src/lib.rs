//! How an adapter function is reached: register windows, DMA address space, interrupts, reset.
