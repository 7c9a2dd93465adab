import pytest
from benchmarks.site import broken_links

PAGE = '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="https://x.org/">x</a>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a.html").write_text(PAGE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.html").write_text('<p id="there">B</p><a href="#there">up</a><img src="i.png">')
    (tmp_path / "i.png").write_bytes(b"\x89PNG")
    (tmp_path / "sub" / "index.html").write_text('<a href="../a.html#top">a</a>')
    return tmp_path


def test_links_that_lead_somewhere(site):
    (site / "c.html").write_text('<a href="sub/">sub</a><a href="b.html?v=1">b</a>')
    assert broken_links(site) == ([], 6)


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ('<a href="c.html">c</a>', "z.html: c.html"),
        ('<a href="b.html#nowhere">b</a>', "z.html: b.html#nowhere"),
        ('<a href="#nowhere">here</a>', "z.html: #nowhere"),
        ('<img src="j.png">', "z.html: j.png"),
        ('<code class="xref py py-class">sheafprop.Nothing</code>', "z.html: sheafprop.Nothing"),
    ],
)
def test_what_leads_nowhere_is_named(site, link, told):
    (site / "z.html").write_text(link)
    assert broken_links(site)[0] == [told]


def test_names_of_others_and_names_within_links_are_no_broken_ones(site):
    (site / "z.html").write_text(
        '<code class="xref py py-class">torch.Tensor</code>'
        '<a href="a.html"><code class="xref py py-class">sheafprop.Known</code></a>'
    )
    assert broken_links(site)[0] == []


def test_an_empty_folder_has_no_link(tmp_path):
    assert broken_links(tmp_path) == ([], 0)
