//! Any bytes as a frame: refused, or arrays that lie within the payload.

#![no_main]

use edl_ps::frame::{HEADER_BYTES, Header, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Ok(header) = Header::decode(*header) else {
        return;
    };
    assert_eq!(Header::decode(header.encode()).ok(), Some(header));
    // A payload is received into aligned memory.
    let mut buffer = edl_ps::frame::Buffer::default();
    buffer.read(&mut &*payload, payload.len()).expect("all of it is there");
    let Ok(arrays) = parse(header.num_arrays, buffer.bytes()) else {
        return;
    };
    for array in arrays {
        let elements = array.entry.count as usize * array.entry.width as usize;
        if let Ok(keys) = array.u64s() {
            assert_eq!(keys.len(), elements);
        }
        if let Ok(numbers) = array.f32s() {
            assert_eq!(numbers.len(), elements);
        }
        if let Ok(text) = array.text() {
            assert_eq!(text.len(), elements);
        }
    }
});
