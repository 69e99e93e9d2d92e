//! The choice of the engine that executes the guest's instructions.

use std::sync::Arc;

use ring3_core::memory::{Memory, MemoryError};
use ring3_translator::{PrivateMemory, Translator, Unavailable};
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
        if *self != EngineChoice::Interpreter {
            match Translator::with_memory(size) {
                Ok((mut translator, memory)) => {
                    if *self == EngineChoice::EagerTranslator {
                        translator.translate_after(0);
                    }
                    return Ok((Box::new(translator), memory));
                }
                Err(Unavailable::Memory(error)) => return Err(error.into()),
                Err(error) if *self == EngineChoice::Auto => {
                    info!("using the interpreter instead of the translator: {error}");
                }
                Err(error) => return Err(error.into()),
            }
        }
        let memory = Memory::with_pages(size, Arc::new(PrivateMemory))?;
        Ok((Box::new(Interpreter::new()), memory))
    }
}

/// The reasons why there can be no engine or no memory.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The host does not allow the translator.
    #[error("the translator cannot run on this host: {0}; use --engine interpreter")]
    Translator(#[from] Unavailable),
    /// The size of memory is wrong.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
