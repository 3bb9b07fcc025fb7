//! Values on the command line: sizes, times, UUIDs, owners.

use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `4096`, `64k`, `512M`, `1.5G`, `2TiB`. Units are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size: give bytes, or a number with K, M, G or T such as 512M");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(wrong()),
    };
    let unit = 1u64 << shift;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(|| format!("'{text}' is too large"));
    }
    match number.parse::<f64>() {
        Ok(value) if shift > 0 && value * unit as f64 <= (1u64 << 53) as f64 => {
            Ok((value * unit as f64) as u64)
        }
        _ => Err(wrong()),
    }
}

/// A whole number.
pub fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no number that fits here"))
}

/// A size below 4 GiB.
pub fn parse_u32(text: &str) -> Result<u32, String> {
    u32::try_from(parse(text)?).map_err(|_| format!("'{text}' is too large"))
}

/// A time in seconds, more than 0: `5`, `0.5`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is no time: give seconds, between 0.01 and 86400")),
    }
}

/// A time until something is given up, in whole seconds: `90s`, `30m`, `12h`, `7d`; 0 for never.
pub fn parse_timeout(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is no time: give a number with s, m, h or d such as 12h, or 0");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds: u32 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        "" if number == "0" => 1,
        _ => return Err(wrong()),
    };
    number.parse::<u32>().ok().and_then(|n| n.checked_mul(seconds)).ok_or_else(wrong)
}

/// A span of time for people, by its largest unit: `12 h`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

/// A UUID as 32 hexadecimal digits, with hyphens or without.
pub fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let wrong = || format!("'{text}' is no UUID such as 123e4567-e89b-12d3-a456-426614174000");
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
        .ok_or_else(|| format!("'{text}' is no owner: give numbers, such as 1000:1000 (see 'id')"))
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
pub fn text(bytes: u64) -> String {
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
        for wrong in ["", "5", "1w", "-1s", "99999999d", "1.5h", "h"] {
            assert!(parse_timeout(wrong).is_err(), "{wrong}");
        }
        assert_eq!(span(Duration::from_secs(119)), "119 s");
        assert_eq!(span(Duration::from_secs(86400)), "24 h");
    }

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
            assert_eq!(parse(word), Ok(bytes), "{word}");
        }
        for word in
            ["", "G", "1X", "-1", "1.5", "1e3", "1 G", "99999999999999999999", "99999999T", "nan", "."]
        {
            assert!(parse(word).is_err(), "{word}");
        }
        assert_eq!((parse_number("7"), parse_number::<u8>("256").is_err()), (Ok(7u8), true));
        assert_eq!(parse_u32("4K"), Ok(4096));
        assert!(parse_u32("4G").is_err());
    }

    #[test]
    fn times_are_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for word in ["0", "-1", "5s", "inf", "nan", ""] {
            assert!(parse_seconds(word).is_err(), "{word}");
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
        assert_eq!(text(0), "0 bytes");
        assert_eq!(text(512), "512 bytes");
        assert_eq!(text(4096), "4 KiB");
        assert_eq!(text(1536 << 20), "1.5 GiB");
        assert_eq!(text(1 << 30), "1 GiB");
        assert_eq!(text(u64::MAX), "16 EiB");
    }
}
