//! What is not an image of these GPUs is refused, and says why.

use super::*;

fn refused(state: &State, image: &mut Image, gpus: u32) -> String {
    let (target, places) = Target::start(machine(gpus), state).unwrap();
    let options = options(ring_of("16M", 1));
    let error = restore_from(&target, places, image, &options).unwrap_err();
    assert_eq!(target.host().complaints(), []);
    assert_all_back(&options.ring);
    error.report().to_string()
}

#[test]
fn a_bit_that_is_flipped_is_found_and_the_file_named() {
    let source = source(1);
    let (state, image) = dumped(&source, 1, &options(ring_of("16M", 1)));
    for place in [300 << 10, 1 << 20] {
        let mut shards = image.0.clone();
        shards[0][place] ^= 0x10;
        let error = refused(&state, &mut Image(shards), 1);
        let gpu_id = source.host().gpu_ids()[0];
        assert!(error.contains(&format!("amdgpu-pages-7-{gpu_id:04x}.img")), "{error}");
    }
}

#[test]
fn a_shard_that_is_cut_or_missing() {
    let source = source(2);
    let (state, image) = dumped(&source, 2, &options(ring_of("16M", 1)));
    for keep in [0, 1, 1 << 20] {
        let mut shards = image.0.clone();
        let len = shards[1].len();
        shards[1].truncate(if keep == 1 { len - 1 } else { keep });
        refused(&state, &mut Image(shards), 2);
    }
    let error = refused(&state, &mut Image(image.0[..1].to_vec()), 2);
    assert!(error.contains("shard"), "{error}");
}

#[test]
fn an_image_of_other_gpus() {
    let source = source(2);
    let (_, image) = dumped(&source, 1, &options(ring_of("16M", 1)));
    let other = self::source(1);
    let (state, _) = dumped(&other, 1, &options(ring_of("16M", 1)));
    let error = refused(&state, &mut Image(image.0.clone()), 1);
    assert!(error.contains("not the contents of a GPU that is to be restored"), "{error}");
}

#[test]
fn an_image_without_one_of_the_gpus() {
    let source = source(2);
    let paused = source.pause().unwrap();
    let (state, mut contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    contents.pop();
    let (destination, kept) = memory(1, None);
    dump_to(&source, contents, destination, &options(ring_of("16M", 1))).unwrap();
    paused.unpause().unwrap();
    let error = refused(&state, &mut kept.image(), 2);
    let gpu_id = source.host().gpu_ids()[1];
    assert!(
        error.contains(&format!("amdgpu-pages-7-{gpu_id:04x}.img is not in the image")),
        "{error}"
    );
}

#[test]
fn contents_of_another_size() {
    let source = source(1);
    let paused = source.pause().unwrap();
    let (state, mut contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    contents[0].bos.pop();
    let (destination, kept) = memory(1, None);
    dump_to(&source, contents, destination, &options(ring_of("16M", 1))).unwrap();
    paused.unpause().unwrap();
    let error = refused(&state, &mut kept.image(), 1);
    assert!(error.contains("announces"), "{error}");
}

#[test]
fn a_reader_that_goes_away_is_the_cause_and_the_process_goes_on() {
    let source = source(2);
    let paused = source.pause().unwrap();
    let (_, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    let (read, write) = std::io::pipe().unwrap();
    let destination = PipeDestination::new(vec![("the pipe".into(), write.into())]);
    let options = options(ring_of("16M", 2));
    let error = std::thread::scope(|scope| {
        scope.spawn(move || {
            use std::io::Read;
            let mut read = read;
            read.read_exact(&mut vec![0; 2 << 20]).unwrap();
        });
        dump_to(&source, contents, Box::new(destination), &options).unwrap_err()
    });
    let text = error.report().to_string();
    assert!(text.contains("the pipe") && text.contains("Broken pipe"), "{text}");
    drop(paused);
    assert_eq!(source.host().left_stopped(), []);
    assert_eq!(source.host().complaints(), []);
    assert_all_back(&options.ring);
}

#[test]
fn a_reader_that_stops_reading_does_not_keep_a_dump_from_being_given_up() {
    let source = source(1);
    let paused = source.pause().unwrap();
    let (_, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    let (_read, write) = std::io::pipe().unwrap();
    let destination = PipeDestination::new(vec![("the pipe".into(), write.into())]);
    let ring = ring_of("1M", 1);
    let gpu = gpu::Options { grace: Duration::from_millis(200), ..options(ring.clone()).gpu };
    let options = Options { gpu, ..options(ring) };
    let since = std::time::Instant::now();
    let check = move || {
        if since.elapsed() < Duration::from_millis(300) {
            return Ok(());
        }
        Err(Error::Interrupted("SIGTERM"))
    };
    let driver = source.driver();
    let error =
        dump(&driver, contents, Box::new(destination), &options, check, &Progress::silent())
            .unwrap_err();
    assert!(matches!(error, Error::Interrupted("SIGTERM")), "{error}");
    drop(paused);
    assert_eq!(source.host().left_stopped(), []);
}
