//! Any bytes as a frame: refused, or arrays that lie within the payload; and as a request to a
//! replica: answered or refused, whatever came before.

#![no_main]

use std::sync::OnceLock;

use edl_ps::bare;
use edl_store::{ModelSpec, Store};
use edl_wire::frame::{Buffer, HEADER_BYTES, Header, parse};
use libfuzzer_sys::fuzz_target;

const MODEL: &str = r#"{"seed": 1, "state": [], "optimizer": {"kind": "sgd", "params": {}},
    "dense": [{"name": "w", "shape": [3], "offset": 0}],
    "tables": [{"name": "t", "dim": 2, "optimizer": {"kind": "sgd", "params": {}},
        "initializer": {"kind": "constant", "params": {"value": 0.0}}}]}"#;

/// One for all requests, with a bound, so that none is refused for what others have left.
fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| {
        let store = Store::new(0, 1);
        let model = ModelSpec::from_json(MODEL).expect("a model");
        store.declare(model, &[0.0; 3], &[]).expect("its values");
        store.set_memory_limit(Some(256 << 20));
        store
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Ok(header) = Header::decode(*header) else {
        return;
    };
    assert_eq!(Header::decode(header.encode()).ok(), Some(header));
    // A payload is received into aligned memory.
    let mut buffer = Buffer::default();
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
    let _ = bare::answer(store(), &header, buffer.bytes());
});
