//! Files of clips: which are read, and how they become the samples that models hear. Owns the bounds on what is decoded,
//! since a small file can declare hours. Knows nothing of forms and models.

mod packed;

use std::borrow::Cow;
use std::io::Cursor;

use hound::{SampleFormat, WavReader};
use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler};

/// Samples a second, as models hear them.
pub const RATE: u32 = 16_000;

/// Of a file: telephones have 8 kHz, studios 192.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=192_000;
const MOST_CHANNELS: u32 = 8;
/// Of a file, each of all channels: 128 MiB as they are held.
const MOST_FRAMES: usize = 1 << 25;
const MOST_SECONDS: usize = 30 * 60;
/// What writers of pipes state, or more: `sox` and `ffmpeg`.
const UNKNOWN_LENGTH: u32 = 0x7fff_0000;
/// Frames that are resampled at once.
const CHUNK: usize = 4096;

/// Why a file cannot be heard; each follows "The file".
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    #[error("is {0}, which is not decoded. Send WAV, FLAC, MP3, M4A or Ogg Vorbis")]
    NotDecoded(&'static str),
    #[error("is not audio that is known here. Send WAV, FLAC, MP3, M4A or Ogg Vorbis")]
    Unknown,
    #[error("cannot be read as {0}: {1}")]
    Unreadable(&'static str, String),
    #[error(
        "has `{0}` samples a second. Send {start} to {end}",
        start = RATES.start(),
        end = RATES.end()
    )]
    Rate(u32),
    #[error("has `{0}` channels. Send at most {MOST_CHANNELS}")]
    Channels(u32),
    #[error(
        "is longer than {minutes} minutes or {MOST_FRAMES} samples. Send it in parts",
        minutes = MOST_SECONDS / 60
    )]
    TooLong,
    #[error("has no samples")]
    Empty,
    #[error("has samples that are not numbers")]
    NotNumbers,
}

/// The samples of a file, of one channel and [`RATE`] a second.
///
/// # Errors
/// What the file is, or has.
pub fn decode(file: &[u8]) -> Result<Vec<f32>, AudioError> {
    let (rate, samples) = match kind(file) {
        Kind::Wav => wav(file)?,
        Kind::Packed(name) => packed::decode(name, file)?,
        Kind::Other(name) => return Err(AudioError::NotDecoded(name)),
        Kind::Unknown => return Err(AudioError::Unknown),
    };
    if samples.is_empty() {
        return Err(AudioError::Empty);
    }
    // Beyond 1 a file is merely loud; far beyond, it is damaged.
    if !samples.iter().all(|sample| sample.abs() <= 16.0) {
        return Err(AudioError::NotNumbers);
    }
    resample(rate, samples)
}

/// Decodes what a client may send, for fuzzing.
///
/// # Panics
/// Where a clip is not within the bounds, or an error is long.
pub fn check_clip(file: &[u8]) {
    match decode(file) {
        Ok(samples) => {
            assert!(!samples.is_empty() && samples.len() <= MOST_SECONDS * RATE as usize + CHUNK);
            assert!(samples.iter().all(|sample| sample.is_finite()));
        }
        Err(error) => assert!(error.to_string().len() < 1000, "{error}"),
    }
}

enum Kind {
    Wav,
    Packed(&'static str),
    Other(&'static str),
    Unknown,
}

/// By its first bytes, whatever it is called.
fn kind(file: &[u8]) -> Kind {
    let begins = |bytes: &[u8]| file.starts_with(bytes);
    let has = |at: usize, bytes: &[u8]| file.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    match file {
        _ if begins(b"RIFF") && has(8, b"WAVE") => Kind::Wav,
        _ if begins(b"fLaC") => Kind::Packed("FLAC"),
        _ if begins(b"OggS") && has(28, b"OpusHead") => Kind::Other("Opus"),
        _ if begins(b"OggS") => Kind::Packed("Ogg Vorbis"),
        _ if begins(b"ID3") => Kind::Packed("MP3"),
        _ if has(4, b"ftyp") => Kind::Packed("MP4"),
        _ if begins(b"\x1a\x45\xdf\xa3") => Kind::Other("WebM"),
        _ if begins(b"FORM") => Kind::Other("AIFF"),
        [0xff, second, ..] if second & 0xf6 == 0xf0 => Kind::Other("AAC"),
        [0xff, second, ..] if second & 0xe0 == 0xe0 => Kind::Packed("MP3"),
        _ => Kind::Unknown,
    }
}

/// What the beginning of a file says, and how many frames it may have.
fn check(rate: u32, channels: u32) -> Result<usize, AudioError> {
    if !RATES.contains(&rate) {
        return Err(AudioError::Rate(rate));
    }
    if !(1..=MOST_CHANNELS).contains(&channels) {
        return Err(AudioError::Channels(channels));
    }
    Ok(MOST_FRAMES.min(MOST_SECONDS * rate as usize))
}

/// Channels that become one.
struct Mixer {
    channels: usize,
    most: usize,
    /// Of the frame that is not whole.
    sum: f32,
    seen: usize,
    frames: Vec<f32>,
}

impl Mixer {
    fn new(channels: u32, most: usize) -> Self {
        Self {
            channels: channels as usize,
            most,
            sum: 0.0,
            seen: 0,
            frames: Vec::new(),
        }
    }

    fn push(&mut self, sample: f32) -> Result<(), AudioError> {
        self.sum += sample;
        self.seen += 1;
        if self.seen < self.channels {
            return Ok(());
        }
        if self.frames.len() == self.most {
            return Err(AudioError::TooLong);
        }
        self.frames.push(self.sum / self.channels as f32);
        (self.sum, self.seen) = (0.0, 0);
        Ok(())
    }
}

fn wav(file: &[u8]) -> Result<(u32, Vec<f32>), AudioError> {
    let unreadable = |error: hound::Error| AudioError::Unreadable("WAV", error.to_string());
    let file = with_length(file);
    let mut reader = WavReader::new(Cursor::new(&*file)).map_err(unreadable)?;
    let spec = reader.spec();
    let most = check(spec.sample_rate, u32::from(spec.channels))?;
    let mut mixer = Mixer::new(u32::from(spec.channels), most);
    match spec.sample_format {
        SampleFormat::Float => {
            for sample in reader.samples::<f32>() {
                mixer.push(sample.map_err(unreadable)?)?;
            }
        }
        SampleFormat::Int => {
            let scale = loudest(u32::from(spec.bits_per_sample));
            for sample in reader.samples::<i32>() {
                mixer.push(sample.map_err(unreadable)? as f32 / scale)?;
            }
        }
    }
    Ok((spec.sample_rate, mixer.frames))
}

/// A file whose writer could not know how long it becomes, such as one of a pipe, with the length that it has.
fn with_length(file: &[u8]) -> Cow<'_, [u8]> {
    // Behind the head of the file.
    let mut at = 12;
    while let Some(head) = file.get(at..at + 8) {
        let (name, length) = head.split_at(4);
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        let rest = file.len() - at - 8;
        if name == b"data" && length >= UNKNOWN_LENGTH && length as usize > rest {
            let mut known = file.to_vec();
            let rest = u32::try_from(rest).unwrap_or(u32::MAX);
            if let Some(place) = known.get_mut(at + 4..at + 8) {
                place.copy_from_slice(&rest.to_le_bytes());
            }
            return Cow::Owned(known);
        }
        // Each begins at an even place.
        let length = length as usize;
        at = at.saturating_add(8 + length + length % 2);
    }
    Cow::Borrowed(file)
}

/// What whole numbers of so many bits are divided by.
fn loudest(bits: u32) -> f32 {
    2.0_f32.powi(i32::try_from(bits.clamp(1, 32)).unwrap_or(32) - 1)
}

fn resample(rate: u32, samples: Vec<f32>) -> Result<Vec<f32>, AudioError> {
    if rate == RATE {
        return Ok(samples);
    }
    let failed = |error: &dyn std::fmt::Display| {
        AudioError::Unreadable("samples of its rate", error.to_string())
    };
    let (from, to) = (rate as usize, RATE as usize);
    let frames = samples.len();
    let mut resampler =
        Fft::<f32>::new(from, to, CHUNK, 1, FixedSync::Both).map_err(|error| failed(&error))?;
    let input = InterleavedSlice::new(&samples, 1, frames).map_err(|error| failed(&error))?;
    let output = resampler.process_all(&input, frames, None);
    Ok(output.map_err(|error| failed(&error))?.take_data())
}

#[cfg(test)]
mod tests {
    use hound::{WavSpec, WavWriter};

    use super::*;

    const SECOND: usize = RATE as usize;

    fn tone(rate: u32, frames: usize) -> Vec<f32> {
        let step = 440.0 * std::f32::consts::TAU / rate as f32;
        (0..frames)
            .map(|at| 0.5 * (at as f32 * step).sin())
            .collect()
    }

    fn file(rate: u32, channels: u16, bits: u16, format: SampleFormat, samples: &[f32]) -> Vec<u8> {
        let spec = WavSpec {
            channels,
            sample_rate: rate,
            bits_per_sample: bits,
            sample_format: format,
        };
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
        let scale = loudest(u32::from(bits)) - 1.0;
        for sample in samples
            .iter()
            .flat_map(|sample| vec![*sample; usize::from(channels)])
        {
            match format {
                SampleFormat::Float => writer.write_sample(sample).unwrap(),
                SampleFormat::Int => writer.write_sample((sample * scale) as i32).unwrap(),
            }
        }
        writer.finalize().unwrap();
        bytes.into_inner()
    }

    #[test]
    fn every_form_of_wav_gives_its_samples() {
        let whole = tone(RATE, SECOND);
        for (bits, format, within) in [
            (8, SampleFormat::Int, 0.02),
            (16, SampleFormat::Int, 1e-4),
            (24, SampleFormat::Int, 1e-5),
            (32, SampleFormat::Int, 1e-5),
            (32, SampleFormat::Float, 1e-9),
        ] {
            for channels in [1, 2] {
                let samples = decode(&file(RATE, channels, bits, format, &whole)).unwrap();
                assert_eq!(samples.len(), whole.len(), "{bits} {channels}");
                let pairs = samples.iter().zip(&whole);
                let off = pairs
                    .map(|(one, other)| (one - other).abs())
                    .fold(0.0, f32::max);
                assert!(off <= within, "{bits} {channels} {off}");
            }
        }
    }

    #[test]
    fn a_file_of_a_pipe_is_read_to_its_end() {
        let whole = tone(RATE, 100);
        let mut piped = file(RATE, 1, 16, SampleFormat::Int, &whole);
        let place = piped.len() - 2 * whole.len() - 4;
        for length in [0x7fff_ffff_u32, u32::MAX] {
            piped[place..place + 4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(decode(&piped).unwrap().len(), whole.len());
        }
        // One that was cut is an error.
        piped[place..place + 4].copy_from_slice(&300_u32.to_le_bytes());
        assert!(matches!(decode(&piped), Err(AudioError::Unreadable(..))));
    }

    /// 1,200 frames of two channels at 22,050 Hz, as libsndfile writes them.
    const FLAC: &[u8] = include_bytes!("../tests/data/tone.flac");

    #[test]
    fn flac_gives_its_samples() {
        let (rate, samples) = packed::decode("FLAC", FLAC).unwrap();
        assert_eq!((rate, samples.len()), (22_050, 1_200));
        let pairs = samples.iter().zip(tone(22_050, 1_200));
        let off = pairs
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max);
        assert!(off < 1e-4, "{off}");
        assert!(
            decode(FLAC)
                .unwrap()
                .len()
                .abs_diff(1_200 * 16_000 / 22_050)
                <= 1
        );
    }

    /// Half a second of a tone at 22,050 Hz, as ffmpeg writes it.
    const LOSSY: [(&str, &[u8]); 3] = [
        ("MP3", include_bytes!("../tests/data/tone.mp3")),
        ("M4A", include_bytes!("../tests/data/tone.m4a")),
        ("Ogg", include_bytes!("../tests/data/tone.ogg")),
    ];

    #[test]
    fn what_is_packed_with_losses_sounds_as_it_did() {
        for (name, file) in LOSSY {
            let samples = decode(file).unwrap();
            // AAC in MP4 keeps what its encoder put before and behind.
            assert!(
                samples.len().abs_diff(SECOND / 2) < SECOND / 16,
                "{name} {}",
                samples.len()
            );
            let inner = &samples[SECOND / 8..SECOND / 8 + SECOND / 4];
            let power =
                inner.iter().map(|sample| sample * sample).sum::<f32>() / inner.len() as f32;
            assert!((power - 0.125).abs() < 0.02, "{name} {power}");
            let rises = inner
                .windows(2)
                .filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0);
            assert!(rises.count().abs_diff(110) <= 1, "{name}");
        }
    }

    #[test]
    fn a_file_that_was_cut_is_an_error_and_no_shorter_clip() {
        for (name, file) in LOSSY {
            let cut = decode(&file[..file.len() / 2]);
            assert!(
                matches!(cut, Err(AudioError::Unreadable(..))),
                "{name} {cut:?}"
            );
        }
        // An MP3 whose first frame does not state how long it is has lost nothing that one could know of.
        let (_, file) = LOSSY[0];
        let frames = file
            .windows(2)
            .enumerate()
            .filter(|(_, two)| *two == [0xff, 0xf3]);
        let second = frames.map(|(at, _)| at).nth(1).unwrap();
        let rest = decode(&file[second..file.len() * 3 / 4]).unwrap();
        assert!(
            rest.len().abs_diff(SECOND * 3 / 8) < SECOND / 16,
            "{}",
            rest.len()
        );
        let ogg = LOSSY[2].1;
        let twice = decode(&[ogg, ogg].concat()).unwrap_err().to_string();
        assert!(twice.contains("several streams"), "{twice}");
    }

    #[test]
    fn other_rates_become_that_of_the_models() {
        for (rate, within) in [
            (8_000, 0.01),
            (11_025, 0.01),
            (22_050, 0.01),
            (44_100, 0.01),
            // Coprime: the filter is as long as the file.
            (44_101, 0.02),
            (48_000, 0.01),
        ] {
            let frames = 2 * rate as usize;
            let given = file(rate, 1, 16, SampleFormat::Int, &tone(rate, frames));
            let samples = decode(&given).unwrap();
            assert!(
                samples.len().abs_diff(2 * SECOND) <= 1,
                "{rate} {}",
                samples.len()
            );
            // Away from the ends, where a filter rings.
            let wanted = tone(RATE, 2 * SECOND);
            let inner = SECOND / 2..3 * SECOND / 2;
            let pairs = samples[inner.clone()].iter().zip(&wanted[inner]);
            let off = pairs
                .map(|(one, other)| (one - other).abs())
                .fold(0.0, f32::max);
            assert!(off < within, "{rate} {off}");
        }
    }

    #[test]
    fn what_is_not_heard_says_why() {
        let float = |value| file(RATE, 1, 32, SampleFormat::Float, &[value; 4]);
        let short = file(RATE, 1, 16, SampleFormat::Int, &tone(RATE, 100));
        for (bytes, part) in [
            (b"ID3\x04".to_vec(), "MP3"),
            (b"\xff\xfb\x90\x64".to_vec(), "MP3"),
            (b"\xff\xf1\x50\x80".to_vec(), "AAC"),
            (b"OggS\0".to_vec(), "Ogg"),
            ([&b"OggS"[..], &[0; 24], b"OpusHead"].concat(), "Opus"),
            (b"\0\0\0\x20ftypM4A ".to_vec(), "MP4"),
            (b"\x1a\x45\xdf\xa3".to_vec(), "WebM"),
            (b"hello".to_vec(), "not audio"),
            (Vec::new(), "not audio"),
            (short[..short.len() - 9].to_vec(), "WAV"),
            (short[..20].to_vec(), "WAV"),
            (b"fLaC\0\0\0".to_vec(), "FLAC"),
            (file(RATE, 1, 16, SampleFormat::Int, &[]), "no samples"),
            (file(1_000, 1, 16, SampleFormat::Int, &[0.0]), "1000"),
            (file(RATE, 9, 16, SampleFormat::Int, &[0.0]), "9"),
            (float(f32::NAN), "not numbers"),
            (float(f32::INFINITY), "not numbers"),
        ] {
            let error = decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_long_file_is_refused_before_it_is_held() {
        let mut mixer = Mixer::new(2, 3);
        for _ in 0..6 {
            mixer.push(0.5).unwrap();
        }
        assert_eq!(mixer.frames, [0.5; 3]);
        mixer.push(0.5).unwrap();
        assert!(matches!(mixer.push(0.5), Err(AudioError::TooLong)));
        assert_eq!(check(8_000, 1).unwrap(), 8_000 * MOST_SECONDS);
        assert_eq!(check(48_000, 1).unwrap(), MOST_FRAMES);
    }

    #[test]
    fn damaged_files_are_errors_and_no_panics() {
        let wav = file(RATE, 2, 16, SampleFormat::Int, &tone(RATE, 50));
        let lossy = LOSSY.map(|(_, file)| (file, 61));
        for (whole, step) in [(&wav[..], 1), (FLAC, 1)].into_iter().chain(lossy) {
            for at in (0..whole.len()).step_by(step) {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut damaged = whole.to_vec();
                    damaged[at] = value;
                    let _ = decode(&damaged);
                }
                let _ = decode(&whole[..at]);
            }
        }
    }
}
