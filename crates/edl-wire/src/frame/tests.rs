//! Frames are read as written, and anything else is refused.

use std::io;

use proptest::prelude::*;

use super::buffer::{KEEP_BYTES, READ_PIECE_BYTES};
use super::*;

fn sent(frame: &Outgoing<'_>) -> (Header, Vec<u8>) {
    let mut bytes = Vec::new();
    frame.write_to(7, &mut bytes).unwrap();
    let payload = bytes.split_off(HEADER_BYTES);
    (Header::decode(bytes.try_into().unwrap()).unwrap(), payload)
}

fn received(payload: &[u8]) -> Buffer {
    let mut buffer = Buffer::default();
    buffer.read(&mut &payload[..], payload.len()).unwrap();
    buffer
}

#[test]
fn a_frame_is_read_as_it_was_written() {
    let frame = Outgoing::new(Op::Push)
        .flags(4)
        .args([1, 2, 3, 4])
        .keys(5, &[10, 20, 30])
        .rows(5, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .dense(&[])
        .state(&[9.0])
        .text("hello")
        .audit(&[[1, 2, 3]]);

    let (header, payload) = sent(&frame);
    let buffer = received(&payload);
    let arrays = parse(header.num_arrays, buffer.bytes()).unwrap();

    assert_eq!((header.op, header.flags, header.sequence), (Op::Push, 4, 7));
    assert_eq!(header.args, [1, 2, 3, 4]);
    assert_eq!(header.payload_bytes, payload.len() as u64);
    assert_eq!(arrays[0].u64s().unwrap(), [10, 20, 30]);
    assert_eq!(arrays[1].f32s().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!((arrays[1].entry.table, arrays[1].entry.width), (5, 2));
    assert!(arrays[2].f32s().unwrap().is_empty());
    assert_eq!(arrays[3].f32s().unwrap(), [9.0]);
    assert_eq!(arrays[4].text().unwrap(), "hello");
    assert_eq!(arrays[5].u64s().unwrap(), [1, 2, 3]);
}

#[test]
fn an_oversize_length_is_refused_in_the_header() {
    let mut bytes = Header {
        op: Op::Push,
        flags: 0,
        num_arrays: 0,
        sequence: 0,
        payload_bytes: 0,
        args: [0; 4],
    }
    .encode();
    bytes[24..32].copy_from_slice(&(MAX_PAYLOAD_BYTES + 1).to_le_bytes());
    let error = Header::decode(bytes).unwrap_err();
    assert!(error.to_string().contains("the limit is"), "{error}");
}

#[test]
fn a_promised_length_is_not_allocated_before_it_arrives() {
    let mut buffer = Buffer::default();
    let error = buffer
        .read(&mut &[0u8; 100][..], MAX_PAYLOAD_BYTES as usize)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(buffer.held_bytes() <= 2 * READ_PIECE_BYTES);
}

#[test]
fn a_large_payload_is_read_whole_and_its_buffer_given_back() {
    let payload: Vec<u8> = (0..KEEP_BYTES + 12345).map(|i| i as u8).collect();
    let mut buffer = received(&payload);
    assert!(buffer.bytes() == payload);
    buffer.read(&mut &payload[..10], 10).unwrap();
    assert!(buffer.held_bytes() <= 2 * READ_PIECE_BYTES);
}

proptest! {
    #[test]
    fn decoding_any_bytes_answers_and_never_panics(
        header in proptest::array::uniform32(any::<u8>()),
        num_arrays in 0u32..200,
        payload in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[..32].copy_from_slice(&header);
        bytes[..8].copy_from_slice(b"EDLW\x02\0\x04\0");
        let _ = Header::decode(bytes);
        let _ = parse(num_arrays, received(&payload).bytes()).map(|arrays| {
            arrays.iter().for_each(|a| { let _ = (a.u64s(), a.f32s(), a.text()); });
        });
    }

    #[test]
    fn a_mutated_frame_is_read_or_refused(
        keys in proptest::collection::vec(any::<u64>(), 0..50),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let rows = vec![1.0; keys.len() * 3];
        let frame = Outgoing::new(Op::Pull).keys(1, &keys).rows(1, 3, &rows).text("x");
        let (header, mut payload) = sent(&frame);
        let at = at.index(payload.len());
        payload[at] = byte;
        let _ = parse(header.num_arrays, received(&payload).bytes());
        payload.truncate(cut.index(payload.len()));
        prop_assert!(parse(header.num_arrays, received(&payload).bytes()).is_err());
    }
}
