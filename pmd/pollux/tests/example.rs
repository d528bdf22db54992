//! The example of the README does what it says.
#![cfg(feature = "emu")]

#[allow(dead_code)] // its main
#[path = "../examples/forward.rs"]
mod forward;

#[test]
fn forwards_every_generated_packet() {
    let total = forward::forward("emu:ports=2,wire0=gen,count0=5000,wire1=null");
    assert_eq!(total.expect("both ports open and close"), 5000);
}

#[test]
fn names_a_device_that_is_none() {
    let error = forward::forward("emu:ports=2,wire=rope").expect_err("no such wire");
    assert!(error.to_string().contains("rope"), "{error}");
}
