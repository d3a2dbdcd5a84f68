//! Layers on their way to the store: three at once into files without names, and from there, lowest first,
//! into the store, which checks them. What is fetched twice is a layer that another process adds meanwhile.

use std::{
    fs::File,
    io::Seek,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use kennel::{
    Error,
    image::{LayerBlob, PullError, StoreWriter, StoredLayer},
};

use super::{registry::Registry, search::FoundLayer};

/// How many layers are fetched at once, as docker does it.
const AT_ONCE: usize = 3;

/// A layer that is being fetched, and where the file goes.
struct Job {
    layer: FoundLayer,
    file: File,
    done: Sender<Result<File, PullError>>,
}

/// The file of a layer, once it is there.
type Fetched = Receiver<Result<File, PullError>>;

/// Ends the fetching threads after their next piece.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Brings all layers of an image into the store. `found` are those that it has, and `told` hears about each
/// one that was fetched.
///
/// # Errors
/// One cannot be fetched (`failed` words that), or the store refuses it.
pub(super) fn store(
    writer: &StoreWriter,
    registry: &Arc<Registry>,
    layers: &[FoundLayer],
    found: Vec<Option<StoredLayer>>,
    failed: &dyn Fn(PullError) -> Error,
    told: &dyn Fn(usize, &FoundLayer),
) -> Result<Vec<StoredLayer>, Error> {
    let over = Over(Arc::default());
    let fetched = fetch(writer, registry, layers, &found, &over.0)?;
    let mut stored: Vec<StoredLayer> = Vec::new();
    for (at, ((layer, known), file)) in layers.iter().zip(found).zip(fetched).enumerate() {
        let Some(file) = file else {
            stored.extend(known);
            continue;
        };
        let lost = || PullError::Write { source: std::io::Error::other("a thread ended early") };
        let mut file = file.recv().unwrap_or_else(|_| Err(lost())).map_err(failed)?;
        file.rewind().map_err(|source| failed(PullError::Write { source }))?;
        let blob = LayerBlob::new(file).with_digest(layer.digest).with_diff_id(layer.diff_id);
        stored.push(writer.add_layer(blob, &stored)?);
        told(at, layer);
    }
    Ok(stored)
}

/// Starts to fetch what is missing, lowest first. The threads end by themselves.
fn fetch(
    writer: &StoreWriter,
    registry: &Arc<Registry>,
    layers: &[FoundLayer],
    found: &[Option<StoredLayer>],
    is_over: &Arc<AtomicBool>,
) -> Result<Vec<Option<Fetched>>, Error> {
    let (mut jobs, mut fetched) = (Vec::new(), Vec::new());
    for (layer, known) in layers.iter().zip(found) {
        if known.is_some() {
            fetched.push(None);
            continue;
        }
        let (done, file) = channel();
        jobs.push(Job { layer: *layer, file: writer.temporary_file()?, done });
        fetched.push(Some(file));
    }
    let workers = jobs.len().min(AT_ONCE);
    jobs.reverse();
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..workers {
        let (jobs, registry, is_over) = (Arc::clone(&jobs), Arc::clone(registry), Arc::clone(is_over));
        let work = move || {
            while let Some(job) = next(&jobs).filter(|_| !is_over.load(Relaxed)) {
                let FoundLayer { digest, size, .. } = job.layer;
                let done = registry.blob(&digest, size, &job.file, &is_over);
                // Nobody listens any more once an earlier layer has failed.
                let _ = job.done.send(done.map(|()| job.file));
            }
        };
        let spawned = thread::Builder::new().name("kennel-pull".to_owned()).spawn(work);
        spawned.map_err(|source| Error::Io { what: "start a thread", source })?;
    }
    Ok(fetched)
}

fn next(jobs: &Mutex<Vec<Job>>) -> Option<Job> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).pop()
}
