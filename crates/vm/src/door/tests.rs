//! The order of inputs at the door, and those that wait outside.

use std::thread;

use super::*;

const COM1: DeviceId = DeviceId::COM[0];
const COM2: DeviceId = DeviceId::COM[1];

fn for_device(device: DeviceId, byte: u8) -> Input {
    Input::Device { device, input: DeviceInput::Serial(vec![byte]) }
}

fn key(byte: u8) -> Input {
    for_device(COM1, byte)
}

#[test]
fn inputs_come_in_order_and_quit_comes_first() {
    let (sender, mut door) = door();
    sender.send(key(1));
    sender.send(key(2));
    assert_eq!(door.take(|_| false), None);
    assert_eq!(door.take(|_| true), Some(key(1)));
    sender.send(Input::Quit);
    assert_eq!(door.take(|_| false), Some(Input::Quit));
    assert_eq!(door.take(|_| true), Some(key(2)));
    assert_eq!(door.take(|_| true), None);
}

#[test]
fn a_full_door_holds_senders_back() {
    let (sender, mut door) = door();
    while sender.offer(key(0)) {}
    let other = sender.clone();
    let blocked = thread::spawn(move || other.send(key(7)));
    for _ in 0..CAPACITY {
        assert_eq!(door.take(|_| true), Some(key(0)));
    }
    door.wait(None, |_| true);
    assert_eq!(door.take(|_| true), Some(key(7)));
    blocked.join().unwrap();
}

#[test]
fn a_device_that_accepts_nothing_does_not_block_the_others() {
    let (sender, mut door) = door();
    while sender.offer(for_device(COM1, 0)) {}
    sender.send(for_device(COM2, 1));
    sender.send(for_device(COM2, 2));
    sender.send(Input::Reset);
    let not_com1 = |input: &Input| device_of(input) != Some(COM1);
    door.wait(None, not_com1);
    assert_eq!(door.take(not_com1), Some(Input::Reset));
    assert_eq!(door.take(not_com1), Some(for_device(COM2, 1)));
    assert_eq!(door.take(not_com1), Some(for_device(COM2, 2)));
    assert_eq!(door.take(not_com1), None);
    assert_eq!(door.take(|_| true), Some(for_device(COM1, 0)));
}

#[test]
fn a_sender_does_not_wait_for_a_machine_that_has_ended() {
    let (sender, door) = door();
    while sender.offer(key(0)) {}
    drop(door);
    sender.send(key(1));
}

#[test]
fn a_subscriber_that_hears_of_a_stop_finds_the_machine_stopped() {
    let (sender, mut door) = door();
    let mut events = sender.control().subscribe();
    let listener = std::thread::spawn(move || events.next().map(|_| sender.status()));
    door.stop(Status::Stopped);
    assert_eq!(listener.join().unwrap(), Some(Status::Stopped));
    door.resume();
    door.pause();
    assert_eq!(door.shared.lock().status, Status::Paused);
    door.stop(Status::Stopped);
    assert_eq!(door.shared.lock().status, Status::Stopped);
    door.resume();
    door.switch_off();
    door.stop(Status::Stopped);
    assert_eq!(door.shared.lock().status, Status::Off);
}

#[test]
fn waiting_ends_with_an_input_or_in_time() {
    let (sender, mut door) = door();
    door.wait(Some(door.host_time().plus_nanos(1_000_000)), |_| true);
    assert_eq!(door.take(|_| true), None);
    let other = sender.clone();
    let thread = thread::spawn(move || other.send(Input::Quit));
    door.wait(None, |_| true);
    assert_eq!(door.take(|_| true), Some(Input::Quit));
    thread.join().unwrap();
}
