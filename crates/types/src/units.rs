//! One grammar of sizes and durations, for every option that takes one.
//!
//! ```text
//! size      4096  64k  512M  1.5G  2TiB        a number and a power of 1024; without a unit, bytes
//! duration  500ms 5s  90m  12h  7d  4w  0      a number and a unit; 0 needs none
//! ```
//! A number may have a fraction where it has a unit. A few older options also take a duration
//! without a unit, as seconds ([`parse_duration_or_seconds`]).

use std::time::Duration;

/// Units of durations with their length in milliseconds, from the shortest to the longest.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 7 * 86_400_000)];

/// Whole numbers up to here are exact as floating point.
const EXACT_MAX: f64 = (1u64 << 53) as f64;

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

/// `number` times `unit`, rounded down; `None` if it is not a number or too large.
fn times(number: &str, unit: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let product = number.parse::<f64>().ok()? * unit as f64;
    (product <= EXACT_MAX).then_some(product as u64)
}

/// A number of bytes: `4096`, `64k`, `512M`, `1.5G`, `2TiB`. Units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("invalid size '{text}': expected bytes, or a number with K, M, G or T such as 512M");
    let (number, unit) = split(text);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" if number.contains('.') => return Err(wrong()),
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(wrong()),
    };
    if number.parse::<f64>().is_err() {
        return Err(wrong());
    }
    times(number, 1 << shift).ok_or_else(|| format!("invalid size '{text}': too large"))
}

/// A duration with a unit: `500ms`, `5s`, `90m`, `12h`, `7d`, `4w`; or `0`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("invalid duration '{text}': expected a number with ms, s, m, h, d or w such as 5s or 12h");
    let (number, unit) = split(text);
    let length = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, length)) => *length,
        None if text == "0" => 1,
        None => return Err(wrong()),
    };
    if number.parse::<f64>().is_err() {
        return Err(wrong());
    }
    times(number, length)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("invalid duration '{text}': too long"))
}

/// As [`parse_duration`]; a number without a unit is seconds.
pub fn parse_duration_or_seconds(text: &str) -> Result<Duration, String> {
    match split(text) {
        (_, "") if !text.is_empty() => parse_duration(&format!("{text}s")),
        _ => parse_duration(text),
    }
}

/// A duration in the grammar of [`parse_duration`], by the largest unit of which it is a whole
/// number.
pub fn duration_text(duration: Duration) -> String {
    let ms = duration.as_millis() as u64;
    let unit = UNITS.iter().rev().find(|(_, length)| ms >= *length && ms % length == 0);
    unit.map_or("0".into(), |(name, length)| format!("{}{name}", ms / length))
}

/// A size in the grammar of [`parse_size`], by the largest unit of which it is a whole number.
pub fn size_text(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let unit = units.iter().find(|(_, shift)| bytes >= 1 << shift && bytes.trailing_zeros() >= *shift);
    unit.map_or(bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (word, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 64 << 10),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("2TiB", 2 << 40),
            ("1GB", 1 << 30),
        ] {
            assert_eq!(parse_size(word), Ok(bytes), "{word}");
        }
        for word in
            ["", "G", "1X", "-1", "1.5", "1e3", "1 G", "99999999999999999999", "99999999T", "nan", "."]
        {
            assert!(parse_size(word).is_err(), "{word}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (word, ms) in [
            ("0", 0),
            ("500ms", 500),
            ("5s", 5000),
            ("0.5s", 500),
            ("90m", 5_400_000),
            ("1.5h", 5_400_000),
            ("7d", 604_800_000),
            ("4w", 2_419_200_000),
        ] {
            assert_eq!(parse_duration(word), Ok(Duration::from_millis(ms)), "{word}");
        }
        for word in
            ["", "5", "s", "-1s", "5 s", "5min", "1e3s", "nan", "inf", ".", ".s", "99999999999999999999w"]
        {
            assert!(parse_duration(word).is_err(), "{word}");
        }
    }

    #[test]
    fn older_options_take_seconds_without_a_unit() {
        assert_eq!(parse_duration_or_seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration_or_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration_or_seconds("2m"), Ok(Duration::from_secs(120)));
        for word in ["", "-1", "soon", "inf"] {
            assert!(parse_duration_or_seconds(word).is_err(), "{word}");
        }
    }

    #[test]
    fn values_read_back_as_they_are_written() {
        for word in ["0", "500ms", "5s", "90m", "12h", "1d", "2w"] {
            assert_eq!(duration_text(parse_duration(word).unwrap()), word);
        }
        for word in ["0", "100", "64K", "24M", "1G", "2T"] {
            assert_eq!(size_text(parse_size(word).unwrap()), word);
        }
    }
}
