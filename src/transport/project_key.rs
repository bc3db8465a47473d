//! Under which name the CLI files a working directory's transcripts.

use std::path::Path;

/// Keys longer than this are cut and get a hash (spec/cli-protocol.md 2).
const KEY_UNITS_MAX: usize = 200;

/// Returns the project key of a real path, that is one without symbolic links.
///
/// Every UTF-16 code unit outside `[A-Za-z0-9]` becomes `-`. A path of more than 200 units keeps
/// the first 200 and gets the base-36 hash of the whole path (seen: project_keys, CLI 2.1.316).
pub(super) fn project_key(real_path: &Path) -> String {
    let path = real_path.to_string_lossy();
    let mut key = String::with_capacity(path.len());
    let mut hash: i32 = 0;
    for unit in path.encode_utf16() {
        hash = hash.wrapping_mul(31).wrapping_add(i32::from(unit));
        let plain = u8::try_from(unit).ok().filter(u8::is_ascii_alphanumeric);
        key.push(plain.map_or('-', char::from));
    }
    // One ASCII character per unit, so the length is the number of units.
    if key.len() > KEY_UNITS_MAX {
        key.truncate(KEY_UNITS_MAX);
        key.push('-');
        key.push_str(&base36(hash.unsigned_abs()));
    }
    key
}

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit(number % 36, 36));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I02: the keys that CLI 2.1.316 made for ten directories (capture project_keys); the recorded
    /// hash of the longest confirms in which directory it made them.
    #[test]
    fn the_keys_are_those_of_the_cli() {
        let lab = "/tmp/lab/scratch-cli/tmp/keyss9itgl5s";
        let key = "-tmp-lab-scratch-cli-tmp-keyss9itgl5s";
        for (directory, expected) in [
            ("plain", "-plain"),
            ("with space", "-with-space"),
            ("dots.and_under-score", "-dots-and-under-score"),
            ("ünïcode", "--n-code"),
            ("emoji😀x", "-emoji--x"),
            ("UPPER", "-UPPER"),
            ("a+b@c#d%e", "-a-b-c-d-e"),
            ("中文", "---"),
        ] {
            let path = format!("{lab}/{directory}");
            assert_eq!(project_key(path.as_ref()), format!("{key}{expected}"));
        }
        let [x, y, z, w] = ["x", "y", "z", "w"].map(|it| it.repeat(60));
        let long = format!("{lab}/{x}/{y}/{z}/{}", &w[..40]);
        assert_eq!(long.len(), 261);
        let cut = format!("{key}-{x}-{y}-{}-1ot05", &z[..40]);
        assert_eq!(project_key(long.as_ref()), cut);
    }

    #[test]
    fn a_key_is_cut_beyond_200_units() {
        let exact = "a".repeat(KEY_UNITS_MAX);
        assert_eq!(project_key(exact.as_ref()), exact);
        let longer = "a".repeat(KEY_UNITS_MAX + 1);
        let key = project_key(longer.as_ref());
        assert_eq!(key.strip_prefix(&exact).map(|it| &it[..1]), Some("-"));
    }

    #[test]
    fn numbers_are_written_to_base_36() {
        for (number, text) in [(0, "0"), (35, "z"), (36, "10"), (u32::MAX, "1z141z3")] {
            assert_eq!(base36(number), text);
        }
    }
}
