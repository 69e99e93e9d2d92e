//! The table of instructions.

use std::collections::HashSet;

use ring3_x86::table::forms;

#[test]
fn no_form_stands_twice() {
    let codes: HashSet<_> = forms().iter().map(|form| form.code).collect();
    assert_eq!(codes.len(), forms().len());
}
