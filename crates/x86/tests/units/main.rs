//! Tests of single parts that need the handlers of all instructions. Tests beside the parts need none of them, so that
//! little of the crate is compiled a second time.

mod cpu;
mod decode;
mod device_access;
mod histogram;
mod simd;
mod simd_float;
mod table;
mod undefined;
mod x87;
