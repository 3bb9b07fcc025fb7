//! Values on the command line and in messages: sizes, durations, UUIDs, owners. The grammar of
//! sizes and durations is [`xact::units`].

use std::str::FromStr;
use std::time::Duration;

pub use xact::units::parse_size;
use xact::units::{parse_duration, parse_duration_or_seconds};

/// A whole number.
pub fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid number '{text}', or out of range"))
}

/// A size below 4 GiB.
pub fn parse_u32(text: &str) -> Result<u32, String> {
    u32::try_from(parse_size(text)?).map_err(|_| format!("invalid size '{text}': too large"))
}

/// The time between two rounds of something, from 10 ms to a day; without a unit, in seconds.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = parse_duration_or_seconds(text)?;
    let range = Duration::from_millis(10)..=Duration::from_secs(86_400);
    let wrong = || format!("invalid duration '{text}': expected 10ms to 1d");
    range.contains(&time).then_some(time).ok_or_else(wrong)
}

/// The time after which something is given up, in whole seconds, rounded up; 0: never.
pub fn parse_timeout(text: &str) -> Result<u32, String> {
    let seconds = parse_duration(text)?.as_millis().div_ceil(1000);
    u32::try_from(seconds).map_err(|_| format!("invalid duration '{text}': too long"))
}

/// A span of time for people, rounded to its largest unit: `12 h`.
pub fn span(time: Duration) -> String {
    let rounded = |unit_s: u128| (time.as_millis() + unit_s * 500) / (unit_s * 1000);
    match (rounded(1), rounded(60), rounded(3600)) {
        (seconds @ 0..120, ..) => format!("{seconds} s"),
        (_, minutes @ 0..120, _) => format!("{minutes} min"),
        (.., hours @ 0..48) => format!("{hours} h"),
        _ => format!("{} days", rounded(86_400)),
    }
}

/// A UUID as 32 hexadecimal digits, with hyphens or without.
pub fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let wrong =
        || format!("invalid UUID '{text}': expected one such as 123e4567-e89b-12d3-a456-426614174000");
    let digits: Vec<u32> = text
        .chars()
        .filter(|&c| c != '-')
        .map(|c| c.to_digit(16).ok_or_else(wrong))
        .collect::<Result<_, _>>()?;
    let pairs: [[u32; 2]; 16] = digits
        .chunks_exact(2)
        .map(|pair| [pair[0], pair[1]])
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| wrong())?;
    if digits.len() != 32 {
        return Err(wrong());
    }
    Ok(pairs.map(|[high, low]| (high << 4 | low) as u8))
}

/// An owner and a group by number: `1000:100`; without a group, the one of the same number.
pub fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    // The highest number is what chown(2) takes for "leave it".
    let number = |text: &str| text.parse::<u32>().ok().filter(|&id| id != u32::MAX);
    number(uid)
        .zip(number(gid))
        .ok_or_else(|| format!("invalid owner '{text}': expected numbers such as 1000:1000 (see 'id')"))
}

/// The usual form of a UUID, 8-4-4-4-12.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A size in bytes with the largest binary unit that leaves no more than three digits before the
/// point: `1.5 GiB`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        assert_eq!(parse_timeout("0"), Ok(0));
        assert_eq!((parse_timeout("90s"), parse_timeout("7d")), (Ok(90), Ok(604_800)));
        assert_eq!((parse_timeout("1w"), parse_timeout("1.5h")), (Ok(604_800), Ok(5400)));
        assert_eq!(parse_timeout("1ms"), Ok(1));
        for wrong in ["", "5", "-1s", "99999999d", "h"] {
            assert!(parse_timeout(wrong).is_err(), "{wrong}");
        }
        assert_eq!(span(Duration::from_secs(119)), "119 s");
        // The time that is left of a term, once a moment has passed.
        for (term, text) in
            [(60, "60 s"), (120, "2 min"), (7200, "2 h"), (86_400, "24 h"), (172_800, "2 days")]
        {
            assert_eq!(span(Duration::from_secs(term)), text);
            assert_eq!(span(Duration::from_secs(term) - Duration::from_millis(30)), text);
        }
        assert_eq!(span(Duration::from_secs(7199)), "2 h");
        assert_eq!(span(Duration::from_secs(172_799)), "2 days");
    }

    #[test]
    fn numbers_have_a_range() {
        assert_eq!((parse_number("7"), parse_number::<u8>("256").is_err()), (Ok(7u8), true));
        assert_eq!(parse_u32("4K"), Ok(4096));
        assert!(parse_u32("4G").is_err());
    }

    #[test]
    fn intervals_are_seconds_without_a_unit() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_interval("5s"), Ok(Duration::from_secs(5)));
        for word in ["0", "-1", "2d", "inf", "nan", ""] {
            assert!(parse_interval(word).is_err(), "{word}");
        }
    }

    #[test]
    fn uuids_go_there_and_back() {
        let word = "123e4567-e89b-12d3-a456-426614174000";
        assert_eq!(uuid_text(&parse_uuid(word).unwrap()), word);
        assert_eq!(parse_uuid(&word.replace('-', "")), parse_uuid(word));
        for word in
            ["", "123", "123e4567-e89b-12d3-a456-42661417400x", "123e4567-e89b-12d3-a456-4266141740000"]
        {
            assert!(parse_uuid(word).is_err(), "{word}");
        }
    }

    #[test]
    fn owners_are_numbers() {
        assert_eq!(parse_owner("1000:100"), Ok((1000, 100)));
        assert_eq!(parse_owner("0"), Ok((0, 0)));
        for word in ["", ":", "1:", ":1", "root", "1:2:3", "-1", "4294967295"] {
            assert!(parse_owner(word).is_err(), "{word}");
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size_text(0), "0 bytes");
        assert_eq!(size_text(512), "512 bytes");
        assert_eq!(size_text(4096), "4 KiB");
        assert_eq!(size_text(1536 << 20), "1.5 GiB");
        assert_eq!(size_text(1 << 30), "1 GiB");
        assert_eq!(size_text(u64::MAX), "16 EiB");
    }
}
