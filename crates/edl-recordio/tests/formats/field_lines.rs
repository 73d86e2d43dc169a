//! Lines of fields give the messages that their columns give, and text with a bad line gives none.

use edl_recordio::{Examples, Feature, FieldKind, LineEncoder, Values, encode_examples};

const CATEGORY: &[u8] = b"00ffAB9c";

fn encoder() -> LineEncoder {
    let fields = [
        ("label", FieldKind::Label),
        ("I2", FieldKind::Integer),
        ("-", FieldKind::LeftOut),
        ("C1", FieldKind::Category),
    ];
    let fields = fields.map(|(name, kind)| (name.to_owned(), kind));
    LineEncoder::new(&fields, b'\t').unwrap()
}

fn messages(examples: &Examples) -> Vec<&[u8]> {
    examples.iter(0..examples.len()).collect()
}

fn encoded(text: &[u8], num_lines: usize) -> Option<Vec<Vec<u8>>> {
    let [rest, chosen] = encoder().encode(text, &vec![false; num_lines])?;
    assert!(chosen.is_empty());
    Some(messages(&rest).into_iter().map(<[u8]>::to_vec).collect())
}

fn expected(label: i64, number: Option<i64>, category: Option<&[u8]>) -> Vec<u8> {
    let splits = |is_there: bool| [0, i64::from(is_there)];
    let (numbers, text) = (
        number.map_or(vec![], |number| vec![number]),
        category.unwrap_or(b""),
    );
    let offsets = category.map_or(vec![0], |text| vec![0, text.len() as i64]);
    let features = [
        Feature {
            name: "C1",
            values: Values::Bytes {
                data: text,
                offsets: &offsets,
            },
            row_splits: &splits(category.is_some()),
        },
        Feature {
            name: "I2",
            values: Values::Int64(&numbers),
            row_splits: &splits(number.is_some()),
        },
        Feature {
            name: "label",
            values: Values::Int64(&[label]),
            row_splits: &splits(true),
        },
    ];
    encode_examples(&features, 1).unwrap().0
}

#[test]
fn lines_give_the_messages_that_columns_give() {
    let most = 10_i64.pow(18) - 1;
    for (field, number) in [
        ("", None),
        ("0", Some(0)),
        ("-0", Some(0)),
        ("007", Some(7)),
        ("127", Some(127)),
        ("128", Some(128)),
        ("-3", Some(-3)),
        ("999999999999999999", Some(most)),
        ("-999999999999999999", Some(-most)),
    ] {
        for category in [None, Some(CATEGORY)] {
            let digits = String::from_utf8_lossy(category.unwrap_or_default());
            for end in ["", "\n", "\r\n"] {
                let text = format!("1\t{field}\tany \u{e9}\t{digits}{end}");
                let found = encoded(text.as_bytes(), 1);
                assert_eq!(found, Some(vec![expected(1, number, category)]), "{text:?}");
            }
        }
    }
}

#[test]
fn chosen_lines_are_apart_and_all_are_in_order() {
    let text: String = (0..1000).map(|n| format!("0\t{n}\t\t\n")).collect();
    let is_chosen: Vec<bool> = (0..1000).map(|n| n % 3 == 0).collect();
    let [rest, chosen] = encoder().encode(text.as_bytes(), &is_chosen).unwrap();
    for (found, wanted) in [(rest, false), (chosen, true)] {
        let numbers = (0..1000).filter(|n| (n % 3 == 0) == wanted);
        let expected: Vec<_> = numbers.map(|n| expected(0, Some(n), None)).collect();
        assert_eq!(messages(&found), expected);
    }
}

#[test]
fn a_line_that_is_no_record_is_refused() {
    let good = "1\t2\tx\t00ffAB9c\n";
    for bad in [
        "",
        "1\t2\tx",
        "1\t2\tx\t00ffAB9c\t",
        "\t2\tx\t00ffAB9c",
        "2\t2\tx\t00ffAB9c",
        "01\t2\tx\t00ffAB9c",
        "1\t-\tx\t00ffAB9c",
        "1\t--2\tx\t00ffAB9c",
        "1\t+2\tx\t00ffAB9c",
        "1\t2.5\tx\t00ffAB9c",
        "1\t 2\tx\t00ffAB9c",
        "1\t1234567890123456789\tx\t00ffAB9c",
        "1\t2\tx\t00ffAB9",
        "1\t2\tx\t00ffAB9c0",
        "1\t2\tx\t00ffAB9g",
        "1\t2\tx\r\t00ffAB9c",
        "1\t2\tx\t00ffAB9c\r",
        "1\r\t2\tx\t00ffAB9c",
    ] {
        let text = format!("{good}{bad}\r\n{good}");
        assert_eq!(encoded(text.as_bytes(), 3), None, "{bad:?}");
        assert!(encoded(good.repeat(3).as_bytes(), 3).is_some());
    }
    assert_eq!(encoded(b"1\t2\tx\t00ffAB9c\r", 1), None);
    assert_eq!(encoded(good.as_bytes(), 2), None);
    assert_eq!(encoded(good.repeat(2).as_bytes(), 1), None);
}

#[test]
fn no_text_has_no_lines() {
    assert_eq!(encoded(b"", 0), Some(vec![]));
}

#[test]
fn a_delimiter_that_may_be_in_a_value_is_refused() {
    let fields = [("label".to_owned(), FieldKind::Label)];
    for delimiter in *b"-aF0\n\r" {
        assert!(LineEncoder::new(&fields, delimiter).is_none());
    }
    assert!(LineEncoder::new(&fields, b'|').is_some());
    assert!(LineEncoder::new(&[("x".repeat(21), FieldKind::Label)], b'|').is_none());
}
