//! The choice of the engine that executes the guest's instructions.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_core::memory::{Memory, MemoryError};
use ring3_translator::{PrivateMemory, Translator, Unavailable, memory_in};
use ring3_x86::engine::Engine;
use ring3_x86::interpreter::Interpreter;
use tracing::info;

/// A choice of engine. The guest cannot tell one from the other, so it is no part of the machine's
/// [`Config`](crate::Config).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The interpreter.
    #[default]
    Interpreter,
    /// The translator; an error if the host does not allow it.
    Translator,
    /// The translator, which translates all code when it is executed first, as tests of it need; an error if the host
    /// does not allow it.
    EagerTranslator,
    /// The translator if the host allows it, and otherwise the interpreter.
    Auto,
}

/// A maker of engines.
pub trait EngineMaker {
    /// Makes an engine, and memory of `size` bytes for it.
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError>;
}

impl<T: EngineMaker + ?Sized> EngineMaker for &T {
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        (**self).make(size)
    }
}

impl EngineMaker for EngineChoice {
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        self.make_in(size, None)
    }
}

/// An engine whose memory comes from a file system of the user's choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineIn {
    /// The engine.
    pub choice: EngineChoice,
    /// A directory of that file system, or None for memory that belongs to no file system.
    pub directory: Option<PathBuf>,
}

impl EngineMaker for EngineIn {
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        self.choice.make_in(size, self.directory.as_deref())
    }
}

impl EngineIn {
    /// Finds out in time whether there can be memory in the directory.
    ///
    /// # Errors
    /// As for an engine that is made.
    pub fn check(&self) -> Result<(), EngineError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        memory_in(directory)
            .map(drop)
            .map_err(|source| EngineError::of_directory(directory, source))
    }
}

impl EngineError {
    fn of_directory(directory: &Path, source: io::Error) -> EngineError {
        EngineError::Directory { directory: directory.to_owned(), source }
    }
}

impl EngineChoice {
    fn make_in(
        self,
        size: u64,
        directory: Option<&Path>,
    ) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        if self != EngineChoice::Interpreter {
            match Translator::with_memory_in(size, directory) {
                Ok((mut translator, memory)) => {
                    if self == EngineChoice::EagerTranslator {
                        translator.translate_after(0);
                    }
                    return Ok((Box::new(translator), memory));
                }
                Err(Unavailable::Memory(error)) => return Err(error.into()),
                Err(error) if self == EngineChoice::Auto => {
                    info!("using the interpreter instead of the translator: {error}");
                }
                Err(error) => return Err(error.into()),
            }
        }
        let memory = match directory {
            None => Memory::with_pages(size, Arc::new(PrivateMemory))?,
            Some(directory) => {
                let pages = memory_in(directory);
                let pages = pages.map_err(|source| EngineError::of_directory(directory, source))?;
                Memory::with_pages(size, pages)?
            }
        };
        Ok((Box::new(Interpreter::new()), memory))
    }
}

/// The reasons why there can be no engine or no memory.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The host does not allow the translator.
    #[error("the translator cannot run on this host: {0}; use --engine interpreter")]
    Translator(#[from] Unavailable),
    /// There can be no memory in this directory.
    #[error("cannot use {directory} for the machine's memory: {source}", directory = .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The size of memory is wrong.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
