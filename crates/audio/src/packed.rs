//! Clips in packets: FLAC, MP3, AAC in MP4, Vorbis in Ogg. Owns that what is decoded is bounded by the file, whose tables may
//! name the same bytes again and again.

use std::io::{Cursor, ErrorKind};

use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::{AudioError, Mixer, check};

/// Packets of one file: half an hour of Vorbis in its shortest blocks has fewer.
const MOST_PACKETS: usize = 1 << 21;
/// Frames that may be missing of what a file states: two packets, with which encoders begin and end.
const SLACK: u64 = 2304;
/// How often the bytes of a file may be decoded. Once, in honest ones.
const MOST_OFTEN: usize = 2;

/// Frames of a file's first track of sound, of one channel, and how many there are a second.
///
/// # Errors
/// What the file is, or has.
pub(super) fn decode(name: &'static str, file: &[u8]) -> Result<(u32, Vec<f32>), AudioError> {
    let unreadable = |error: Error| AudioError::Unreadable(name, error.to_string());
    let source = Box::new(Cursor::new(file));
    let source = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
    let (reading, tags) = (FormatOptions::default(), MetadataOptions::default());
    let mut format = symphonia::default::get_probe()
        .probe(&Hint::new(), source, reading, tags)
        .map_err(unreadable)?;
    let track = format.default_track(TrackType::Audio);
    let track = track.ok_or(AudioError::Empty)?;
    let (own, stated) = (track.id, track.num_frames);
    let codec = track.codec_params.as_ref().and_then(|codec| codec.audio());
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(
            codec.ok_or(AudioError::Empty)?,
            &AudioDecoderOptions::default(),
        )
        .map_err(unreadable)?;
    let mut mixed: Option<(u32, u32, Mixer)> = None;
    let (mut packets, mut bytes) = (0, 0);
    let mut samples: Vec<f32> = Vec::new();
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // In the middle of a packet. Whether more than that is missing is seen below.
            Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(Error::ResetRequired) => {
                let text = "it has several streams, one behind the other".to_owned();
                return Err(AudioError::Unreadable(name, text));
            }
            Err(error) => return Err(unreadable(error)),
        };
        packets += 1;
        bytes += packet.data.len();
        if packets > MOST_PACKETS || bytes > MOST_OFTEN * file.len() {
            return Err(AudioError::TooLong);
        }
        if packet.track_id != own {
            continue;
        }
        let decoded = match decoder.decode(&packet) {
            Ok(decoded) => decoded,
            // The first of a stream may build on some that were cut off.
            Err(Error::DecodeError(_)) if mixed.is_none() => continue,
            Err(error) => return Err(unreadable(error)),
        };
        let spec = decoded.spec();
        let channels = u32::try_from(spec.channels().count()).unwrap_or(u32::MAX);
        let (rate, first, mixer) = match &mut mixed {
            Some(mixed) => mixed,
            None => {
                let most = check(spec.rate(), channels)?;
                mixed.insert((spec.rate(), channels, Mixer::new(channels, most)))
            }
        };
        if (*rate, *first) != (spec.rate(), channels) {
            let text = "its rate or its channels change".to_owned();
            return Err(AudioError::Unreadable(name, text));
        }
        decoded.copy_to_vec_interleaved(&mut samples);
        for sample in &samples {
            mixer.push(*sample)?;
        }
    }
    let (rate, _, mixer) = mixed.ok_or(AudioError::Empty)?;
    let heard = mixer.frames.len() as u64;
    if stated.is_some_and(|stated| heard.saturating_add(SLACK) < stated) {
        let text = "it was cut off, and ends before its last sample".to_owned();
        return Err(AudioError::Unreadable(name, text));
    }
    Ok((rate, mixer.frames))
}
